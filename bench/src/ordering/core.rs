//! The pure core: one position without a parent that is fed requests of one number each, in batches as a socket would
//! deliver them. No socket, no encoding: what remains is the counting.

use std::time::{Duration, Instant};

use flexlog_protocol::peer::{Child, ToParent};
use flexlog_protocol::{Color, Epoch, Incarnation, Position, ShardId};
use flexlog_sequencer::Sequencer;
use flexlog_sequencer::tree::{Input, Output};
use uuid::Uuid;

use crate::Outcome;

/// Requests that are fed before the sequencer is told that no more is at hand.
pub(super) const BATCHES: [usize; 3] = [1, 16, 256];

/// Numbers per second.
pub(super) fn numbers_per_s(batch: usize, time: Duration) -> Outcome<f64> {
    let me = Incarnation { position: Position(0), epoch: Epoch(1), uuid: Uuid::from_u128(1) };
    let shard = ShardId(1);
    let color = Color::new(Position(0), false, 1).ok_or("the root owns no color")?;
    let mut sequencer = Sequencer::new(me, true, &[Child::Shard(shard)]);
    let mut out = Vec::new();
    sequencer.start(&mut out);
    let report = ToParent::Sealed { by: me, nth: 0, colors: Vec::new() };
    sequencer.handle(Input::Shard { from: shard, message: report }, &mut out);
    if !sequencer.serves() {
        return Err("the sequencer does not serve, though all below has reported".into());
    }
    out.clear();
    let (mut asked, mut granted) = (0u64, 0u64);
    let begin = Instant::now();
    while begin.elapsed() < time {
        // So many that looking at the clock does not count.
        for _ in 0..4096 / batch {
            for _ in 0..batch {
                let message = ToParent::Order { batch: asked, color, count: 1 };
                sequencer.handle(Input::Shard { from: shard, message }, &mut out);
                asked += 1;
            }
            sequencer.flush(&mut out);
            granted += out.drain(..).filter(|output| matches!(output, Output::Shard { .. })).count() as u64;
        }
    }
    let per_s = granted as f64 / begin.elapsed().as_secs_f64();
    if granted == asked { Ok(per_s) } else { Err(format!("{asked} numbers were asked for, {granted} given").into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_gets_its_number() {
        for batch in BATCHES {
            assert!(numbers_per_s(batch, Duration::from_millis(1)).unwrap() > 0.0);
        }
    }
}
