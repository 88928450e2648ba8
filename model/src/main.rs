//! scratch
use flexlog_model::*;
use std::io::Write;
fn main() {
    let a: Vec<u8> = std::env::args().nth(1).unwrap_or_default().split(',').map(|x| x.parse().unwrap()).collect();
    let r = if a.len() == 8 {
    let bounds = shard::Bounds { members: a[0].into(), replicas: a[1].into(), min_view: a[2].into(), leaves: a[3].into(), tokens: a[4].into(), changes: a[5], restarts: a[6], asks: a[7] };
    explore(&shard::Shard { bounds, fault: None }, 2, Until::AllStates)
    } else {
    let bounds = tree::Bounds { inner: a[0] > 0, wide: a[1] > 0, tokens: [a[2], a[3]], tenures: [a[4], a[5], a[6], a[7]], asks: a[8] };
    let fault = if a.len() > 9 { Some(Fault::OldChildTaken) } else { None };
    explore(&tree::Tree { bounds, fault }, 2, if fault.is_some() {Until::Counterexample} else {Until::AllStates})
    };
    write!(std::io::stdout(), "{r}").unwrap();
}
