//! scratch
use flexlog_model::*;
use std::io::Write;
fn main() {
    let a: Vec<u8> = std::env::args().nth(1).unwrap_or_default().split(',').map(|x| x.parse().unwrap()).collect();
    let bounds = shard::Bounds { members: a[0].into(), replicas: a[1].into(), min_view: a[2].into(), leaves: a[3].into(), tokens: a[4].into(), changes: a[5], restarts: a[6], asks: a[7] };
    let r = explore(&shard::Shard { bounds, fault: None }, 2, Until::AllStates);
    write!(std::io::stdout(), "{r}").unwrap();
}
