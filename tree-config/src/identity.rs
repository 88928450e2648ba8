//! Whether a folder is the store that the cluster knows as a replica's.
//!
//! A replica's word counts for records that others rely on, so a store that lost some of its past must never come back
//! under its old name. Each opening counts up, on both sides, in steps that survive a crash between any two of them:
//!
//! 1. the store makes `intent(n, nonce)` durable, `n` the times it was opened, the nonce fresh;
//! 2. [`crate::operations::begin_open`]: the metadata goes from `n` to `Opening{n, nonce}`;
//! 3. the store makes `n + 1` durable, and keeps the nonce beside it;
//! 4. [`crate::operations::finish_open`]: the metadata goes from `Opening{n, nonce}` to `n + 1`.
//!
//! Until step 4 is done the store accepts and reports nothing. After a crash the store says where to go on: with an
//! intent, at step 2 with the *same* nonce; opened `n + 1` times, at step 4 with the nonce kept (it does no harm if
//! that was done), and then at step 1. This module judges steps 2 and 4, as functions of what each side says.

use flexlog_protocol::{ReplicaId, StoreId};
use uuid::Uuid;

use crate::record::StoreState;

/// What a store says of itself when it is opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opening {
    /// The store, as its superblock names it.
    pub store: StoreId,
    /// How many times it was opened before this.
    pub n: u64,
    /// Drawn for this opening.
    pub nonce: Uuid,
}

/// A store is not taken for the replica's. It MUST NOT accept or report anything.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IdentityRefusal {
    /// The folder holds a new store, while the cluster knows an old one: it was wiped, or is the wrong folder.
    #[error(
        "replica {replica}: its folder holds a new store ({found}), but the cluster knows store {known}, opened {opened} \
         times: the folder was wiped or is another one. It is a stranger and cannot come back as replica {replica}: put \
         the right folder back, or join it as a new replica"
    )]
    Wiped {
        /// The replica.
        replica: ReplicaId,
        /// The store that was found.
        found: StoreId,
        /// The store that the cluster knows.
        known: StoreId,
        /// How many times that one was opened.
        opened: u64,
    },
    /// The folder holds a store with a past of its own.
    #[error(
        "replica {replica}: its folder holds store {found} (opened {found_opened} times), but the cluster knows store \
         {known} (opened {opened} times): the folder is another replica's. It is a stranger here: put the right folder \
         back, or join an empty one as a new replica"
    )]
    OtherStore {
        /// The replica.
        replica: ReplicaId,
        /// The store that was found.
        found: StoreId,
        /// How many times that one was opened.
        found_opened: u64,
        /// The store that the cluster knows.
        known: StoreId,
        /// How many times that one was opened.
        opened: u64,
    },
    /// The folder is the replica's as it once was.
    #[error(
        "replica {replica}: its folder holds store {store} as it was after {found_opened} openings, but the cluster has \
         seen {opened}: it is an older image or a copy, and lacks what came since. It is a stranger and cannot come back \
         as replica {replica}: put the newest folder back, or join an empty one as a new replica"
    )]
    OlderImage {
        /// The replica.
        replica: ReplicaId,
        /// The store.
        store: StoreId,
        /// How many times the folder says it was opened.
        found_opened: u64,
        /// How many times the cluster has seen it opened, one that is under way included.
        opened: u64,
    },
    /// Another copy of the folder is being opened, or was when it stopped.
    #[error(
        "replica {replica}: an opening of store {store} is under way that this folder knows nothing of (opened {n} times; \
         the cluster expects nonce {known}, the folder has {found}): the folder is a copy, and the other copy went on. It \
         is a stranger and cannot come back as replica {replica}: start the other copy, or join an empty folder as a new \
         replica"
    )]
    CopiedFolder {
        /// The replica.
        replica: ReplicaId,
        /// The store.
        store: StoreId,
        /// How many times both say that it was opened.
        n: u64,
        /// The nonce of the folder.
        found: Uuid,
        /// The nonce that the cluster expects.
        known: Uuid,
    },
    /// The store has seen more openings than the metadata: the metadata forgot.
    #[error(
        "replica {replica}: its store {store} was opened {found_opened} times, but the metadata knows of {opened} only: \
         the metadata went back (a restored backup?), or the folder belongs to another cluster. Nothing is started: an \
         operator must put the newest metadata back, or decide which to give up"
    )]
    MetadataBehind {
        /// The replica.
        replica: ReplicaId,
        /// The store.
        store: StoreId,
        /// How many times the folder says it was opened.
        found_opened: u64,
        /// How many times the metadata says so.
        opened: u64,
    },
    /// The store went through an opening that the metadata has not seen the end of: step 4 of it comes first.
    #[error(
        "replica {replica}: opening {n} of store {store} was never finished in the metadata: finish it first, with its \
         nonce {nonce}"
    )]
    Unfinished {
        /// The replica.
        replica: ReplicaId,
        /// The store.
        store: StoreId,
        /// How many times it was opened before that opening.
        n: u64,
        /// The nonce of that opening.
        nonce: Uuid,
    },
}

/// What to do with the metadata for a step that is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Go to this state, by compare-and-set.
    Write(StoreState),
    /// It is there already: the step was done before, and its answer lost.
    Done,
}

/// The refusal of a store that is not the one known.
fn stranger(replica: ReplicaId, found: StoreId, n: u64, known: StoreId, opened: u64) -> IdentityRefusal {
    if n == 0 {
        IdentityRefusal::Wiped { replica, found, known, opened }
    } else {
        IdentityRefusal::OtherStore { replica, found, found_opened: n, known, opened }
    }
}

/// Judges step 2.
///
/// # Errors
/// Why the store is not the replica's.
pub fn begin(replica: ReplicaId, known: &StoreState, seen: Opening) -> Result<Step, IdentityRefusal> {
    let Opening { store, n, nonce } = seen;
    let write = Ok(Step::Write(StoreState::Opening { store, n, nonce }));
    let behind = |opened| IdentityRefusal::MetadataBehind { replica, store, found_opened: n, opened };
    let older = |opened| IdentityRefusal::OlderImage { replica, store, found_opened: n, opened };
    match *known {
        StoreState::Fresh if n == 0 => write,
        StoreState::Fresh => Err(behind(0)),
        StoreState::Opened { store: s, n: m } if s != store => Err(stranger(replica, store, n, s, m)),
        StoreState::Opening { store: s, n: m, .. } if s != store => Err(stranger(replica, store, n, s, m)),
        StoreState::Opened { n: m, .. } if n == m => write,
        StoreState::Opened { n: m, .. } if n < m => Err(older(m)),
        StoreState::Opened { n: m, .. } => Err(behind(m)),
        StoreState::Opening { n: m, nonce: k, .. } if n == m && nonce == k => Ok(Step::Done),
        StoreState::Opening { n: m, nonce: k, .. } if n == m => {
            Err(IdentityRefusal::CopiedFolder { replica, store, n, found: nonce, known: k })
        }
        StoreState::Opening { n: m, .. } if n < m => Err(older(m.saturating_add(1))),
        StoreState::Opening { n: m, nonce: k, .. } if m.checked_add(1) == Some(n) => {
            Err(IdentityRefusal::Unfinished { replica, store, n: m, nonce: k })
        }
        StoreState::Opening { n: m, .. } => Err(behind(m)),
    }
}

/// Judges step 4: the store counts `seen.n + 1` now.
///
/// # Errors
/// Why the store is not the replica's.
pub fn finish(replica: ReplicaId, known: &StoreState, seen: Opening) -> Result<Step, IdentityRefusal> {
    let Opening { store, n, nonce } = seen;
    let reached = n.saturating_add(1);
    let behind = |opened| IdentityRefusal::MetadataBehind { replica, store, found_opened: reached, opened };
    let older = |opened| IdentityRefusal::OlderImage { replica, store, found_opened: reached, opened };
    match *known {
        StoreState::Fresh => Err(behind(0)),
        StoreState::Opened { store: s, n: m } if s != store => Err(stranger(replica, store, reached, s, m)),
        StoreState::Opening { store: s, n: m, .. } if s != store => Err(stranger(replica, store, reached, s, m)),
        StoreState::Opened { n: m, .. } if m == reached => Ok(Step::Done),
        StoreState::Opened { n: m, .. } if m > reached => Err(older(m)),
        StoreState::Opened { n: m, .. } => Err(behind(m)),
        StoreState::Opening { n: m, nonce: k, .. } if m == n && k == nonce => {
            Ok(Step::Write(StoreState::Opened { store, n: reached }))
        }
        StoreState::Opening { n: m, nonce: k, .. } if m == n => {
            Err(IdentityRefusal::CopiedFolder { replica, store, n, found: nonce, known: k })
        }
        StoreState::Opening { n: m, .. } if m > n => Err(older(m.saturating_add(1))),
        StoreState::Opening { n: m, .. } => Err(behind(m)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const REPLICA: ReplicaId = ReplicaId(2);

    fn id(n: u128) -> StoreId {
        StoreId(Uuid::from_u128(n))
    }

    fn nonce(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    fn seen(store: u128, n: u64, k: u128) -> Opening {
        Opening { store: id(store), n, nonce: nonce(k) }
    }

    fn opened(n: u64) -> StoreState {
        StoreState::Opened { store: id(1), n }
    }

    fn opening(n: u64, k: u128) -> StoreState {
        StoreState::Opening { store: id(1), n, nonce: nonce(k) }
    }

    #[test]
    fn the_steps_in_order_go_well_and_may_be_repeated() {
        assert_eq!(begin(REPLICA, &StoreState::Fresh, seen(1, 0, 7)), Ok(Step::Write(opening(0, 7))));
        assert_eq!(begin(REPLICA, &opening(0, 7), seen(1, 0, 7)), Ok(Step::Done));
        assert_eq!(finish(REPLICA, &opening(0, 7), seen(1, 0, 7)), Ok(Step::Write(opened(1))));
        assert_eq!(finish(REPLICA, &opened(1), seen(1, 0, 7)), Ok(Step::Done));
        assert_eq!(begin(REPLICA, &opened(1), seen(1, 1, 8)), Ok(Step::Write(opening(1, 8))));
    }

    #[test]
    fn a_wiped_folder_is_a_stranger() {
        let refusal = begin(REPLICA, &opened(4), seen(9, 0, 7)).unwrap_err();
        assert_eq!(refusal, IdentityRefusal::Wiped { replica: REPLICA, found: id(9), known: id(1), opened: 4 });
        let text = refusal.to_string();
        assert!(text.contains("replica 2") && text.contains("opened 4 times") && text.contains("stranger"), "{text}");
        assert!(matches!(begin(REPLICA, &opening(4, 1), seen(9, 0, 7)), Err(IdentityRefusal::Wiped { .. })));
    }

    #[test]
    fn another_replicas_folder_is_a_stranger() {
        assert!(matches!(
            begin(REPLICA, &opened(4), seen(9, 3, 7)),
            Err(IdentityRefusal::OtherStore { found_opened: 3, opened: 4, .. })
        ));
        assert!(matches!(finish(REPLICA, &opened(4), seen(9, 3, 7)), Err(IdentityRefusal::OtherStore { .. })));
    }

    #[test]
    fn an_older_image_is_a_stranger() {
        assert!(matches!(
            begin(REPLICA, &opened(4), seen(1, 3, 7)),
            Err(IdentityRefusal::OlderImage { found_opened: 3, opened: 4, .. })
        ));
        // The newest copy has begun its fifth opening; this one was left behind before.
        assert!(matches!(
            begin(REPLICA, &opening(4, 1), seen(1, 3, 7)),
            Err(IdentityRefusal::OlderImage { found_opened: 3, opened: 5, .. })
        ));
        assert!(matches!(finish(REPLICA, &opening(4, 1), seen(1, 3, 7)), Err(IdentityRefusal::OlderImage { .. })));
        assert!(matches!(finish(REPLICA, &opened(5), seen(1, 3, 7)), Err(IdentityRefusal::OlderImage { .. })));
    }

    #[test]
    fn a_copied_folder_is_a_stranger_once_the_other_copy_went_on() {
        let expected =
            IdentityRefusal::CopiedFolder { replica: REPLICA, store: id(1), n: 4, found: nonce(8), known: nonce(7) };
        assert_eq!(begin(REPLICA, &opening(4, 7), seen(1, 4, 8)), Err(expected.clone()));
        assert_eq!(finish(REPLICA, &opening(4, 7), seen(1, 4, 8)), Err(expected));
    }

    #[test]
    fn metadata_that_forgot_is_refused() {
        for (known, n, want) in [(StoreState::Fresh, 3, 0), (opened(2), 3, 2), (opening(1, 7), 3, 1)] {
            match begin(REPLICA, &known, seen(1, n, 7)) {
                Err(IdentityRefusal::MetadataBehind { found_opened: 3, opened, .. }) => assert_eq!(opened, want),
                other => panic!("{other:?}"),
            }
            assert!(
                matches!(
                    finish(REPLICA, &known, seen(1, n, 7)),
                    Err(IdentityRefusal::MetadataBehind { found_opened: 4, .. })
                ),
                "{known:?}"
            );
        }
        // The intent is durable, the metadata knows nothing of the opening: it must not be finished.
        assert!(matches!(finish(REPLICA, &opened(3), seen(1, 3, 7)), Err(IdentityRefusal::MetadataBehind { .. })));
    }

    #[test]
    fn an_opening_is_finished_before_the_next_begins() {
        let expected = IdentityRefusal::Unfinished { replica: REPLICA, store: id(1), n: 4, nonce: nonce(7) };
        assert_eq!(begin(REPLICA, &opening(4, 7), seen(1, 5, 8)), Err(expected));
    }

    /// The store's half, as a superblock keeps it.
    #[derive(Clone, Debug)]
    struct Folder {
        n: u64,
        /// The nonce of the opening under way, or of the last.
        nonce: u128,
        intent: bool,
    }

    proptest! {
        /// Copies of one folder, restarted and stopped at any step, in any order: whichever finishes an opening, none
        /// that missed one ever finishes another.
        #[test]
        fn a_folder_that_missed_an_opening_never_comes_back(
            steps in proptest::collection::vec((0..3usize, 0..5u8), 1..60)
        ) {
            let mut known = StoreState::Fresh;
            let mut folders = vec![Folder { n: 0, nonce: 0, intent: false }];
            let mut fresh_nonce = 0u128;
            // The nonces of the openings that the metadata saw finished, in order.
            let mut history: Vec<u128> = Vec::new();
            let mut pasts: Vec<Vec<u128>> = vec![Vec::new()];
            for (which, action) in steps {
                let i = which % folders.len();
                let mut folder = folders[i].clone();
                let mut past = pasts[i].clone();
                match action {
                    // Copy the folder.
                    0 => {
                        if folders.len() < 3 {
                            folders.push(folder);
                            pasts.push(past);
                        }
                        continue;
                    }
                    // Step 1.
                    1 if !folder.intent => {
                        fresh_nonce += 1;
                        folder.nonce = fresh_nonce;
                        folder.intent = true;
                    }
                    // Steps 2 and 3.
                    2 if folder.intent => match begin(REPLICA, &known, seen(1, folder.n, folder.nonce)) {
                        Ok(step) => {
                            if let Step::Write(state) = step {
                                known = state;
                            }
                            folder.n += 1;
                            folder.intent = false;
                            past.push(folder.nonce);
                        }
                        Err(_) => continue,
                    },
                    // Step 4.
                    3 if !folder.intent && folder.n > 0 => {
                        let before = known;
                        match finish(REPLICA, &known, seen(1, folder.n - 1, folder.nonce)) {
                            Ok(Step::Write(state)) => {
                                known = state;
                                history.push(folder.nonce);
                                prop_assert_eq!(&history, &past, "a store came back that missed an opening");
                            }
                            Ok(Step::Done) => prop_assert_eq!(before, opened(folder.n)),
                            Err(_) => {}
                        }
                        continue;
                    }
                    _ => continue,
                }
                folders[i] = folder;
                pasts[i] = past;
            }
        }
    }
}
