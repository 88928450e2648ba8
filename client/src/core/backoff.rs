//! How long to wait before the next try: doubling, with jitter, up to a bound.

use uuid::Uuid;

use flexlog_protocol::Time;

/// Waits that grow with each try in a row that went wrong.
#[derive(Debug, Clone)]
pub struct Backoff {
    first: u64,
    last: u64,
    tries: u32,
    /// State of a xorshift generator: jitter need not be better than that, and must be the same for the same seed.
    chance: u64,
}

impl Backoff {
    /// Waits from about `first` to about `last` microseconds.
    #[must_use]
    pub fn new(first: u64, last: u64, seed: Uuid) -> Self {
        let (high, low) = seed.as_u64_pair();
        Self { first, last, tries: 0, chance: (high ^ low ^ first) | 1 }
    }

    /// Something went well: the next wait is the first again.
    pub fn reset(&mut self) {
        self.tries = 0;
    }

    /// Something went wrong at `now`: when to try again. Between half of the full wait and all of it.
    pub fn next(&mut self, now: Time) -> Time {
        let full = self.first.saturating_mul(1 << self.tries.min(32)).min(self.last).max(2);
        self.tries = self.tries.saturating_add(1);
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        now.after(full / 2 + self.chance % (full / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_their_bound_and_start_again() {
        let mut backoff = Backoff::new(1000, 50_000, Uuid::from_u128(5));
        let mut full = 1000;
        for _ in 0..100 {
            let wait = backoff.next(Time(7)).0 - 7;
            assert!((full / 2..full).contains(&wait), "{wait} of {full}");
            full = (full * 2).min(50_000);
        }
        backoff.reset();
        assert!(backoff.next(Time(0)).0 < 1000);
    }
}
