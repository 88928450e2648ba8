//! Which models are explored, how far, and which faults are planted where.

use crate::explore::{Explorable, Report, Until, explore};
use crate::fault::Fault;
use crate::shard::{self, Shard};
use crate::tree::{self, Tree};

/// A model with its bounds.
#[derive(Clone, Debug)]
pub enum Case {
    /// One shard.
    Shard(Shard),
    /// The tree over two shards.
    Tree(Tree),
}

impl Case {
    /// Explores it.
    #[must_use]
    pub fn explore(&self, threads: usize, until: Until) -> Report {
        match self {
            Self::Shard(model) => explore(model, threads, until),
            Self::Tree(model) => explore(model, threads, until),
        }
    }

    /// The rule that is broken in it on purpose.
    #[must_use]
    pub fn fault(&self) -> Option<Fault> {
        match self {
            Self::Shard(model) => model.fault,
            Self::Tree(model) => model.fault,
        }
    }

    /// The same bounds with every rule kept.
    #[must_use]
    pub fn sound(&self) -> Self {
        match self {
            Self::Shard(model) => Self::Shard(Shard { fault: None, ..model.clone() }),
            Self::Tree(model) => Self::Tree(Tree { fault: None, ..model.clone() }),
        }
    }

    /// How far it goes, in one line.
    #[must_use]
    pub fn bounds(&self) -> String {
        match self {
            Self::Shard(model) => format!("{}: {}", model.name(), model.bounds()),
            Self::Tree(model) => format!("{}: {}", model.name(), model.bounds()),
        }
    }
}

/// Members, replicas, the least view; leaves, tokens, changes of view, restarts, tail questions.
fn shard(of: [usize; 3], limits: [u8; 5], fault: Option<Fault>) -> Case {
    let [members, replicas, min_view] = of;
    let [leaves, tokens, changes, restarts, asks] = limits;
    let (leaves, tokens) = (usize::from(leaves), usize::from(tokens));
    let bounds =
        shard::Bounds { members, replicas, min_view: min_view as u32, leaves, tokens, changes, restarts, asks };
    Case::Shard(Shard { bounds, fault })
}

#[derive(Clone, Copy)]
enum Shape {
    Flat,
    Deep,
}

#[derive(Clone, Copy)]
enum Color {
    Narrow,
    Wide,
}

/// Tokens of each shard; processes at the root, the inner position and each leaf; tail questions.
fn tree(shape: Shape, color: Color, tokens: [u8; 2], tenures: [u8; 4], asks: u8, fault: Option<Fault>) -> Case {
    let (inner, wide) = (matches!(shape, Shape::Deep), matches!(color, Color::Wide));
    Case::Tree(Tree { bounds: tree::Bounds { inner, wide, tokens, tenures, asks }, fault })
}

/// What is explored in full: some minutes, and some gigabytes of memory.
#[must_use]
pub fn full() -> Vec<Case> {
    use Color::{Narrow, Wide};
    use Shape::{Deep, Flat};
    vec![
        shard([2, 2, 1], [3, 2, 1, 1, 1], None),
        shard([2, 3, 1], [2, 1, 2, 1, 1], None),
        shard([3, 3, 2], [2, 2, 1, 0, 1], None),
        tree(Flat, Narrow, [2, 0], [2, 1, 2, 1], 1, None),
        tree(Flat, Wide, [1, 1], [2, 1, 2, 1], 1, None),
        tree(Flat, Wide, [1, 1], [3, 1, 2, 1], 0, None),
        tree(Flat, Wide, [2, 1], [2, 1, 1, 1], 1, None),
        tree(Deep, Narrow, [2, 0], [2, 2, 2, 1], 0, None),
        tree(Deep, Wide, [1, 1], [2, 2, 2, 1], 0, None),
        tree(Deep, Wide, [1, 1], [2, 1, 2, 1], 1, None),
    ]
}

/// Smaller bounds, for tests.
#[must_use]
pub fn quick() -> Vec<Case> {
    use Color::{Narrow, Wide};
    use Shape::{Deep, Flat};
    vec![
        shard([2, 2, 1], [2, 2, 1, 0, 1], None),
        shard([1, 2, 1], [2, 1, 2, 1, 1], None),
        tree(Flat, Narrow, [2, 0], [2, 1, 2, 1], 1, None),
        tree(Flat, Wide, [1, 1], [2, 1, 2, 1], 0, None),
        tree(Deep, Wide, [1, 1], [2, 1, 2, 1], 0, None),
    ]
}

/// Every fault, where it is found soon.
#[must_use]
pub fn planted() -> Vec<Case> {
    Fault::ALL.iter().map(|fault| plant(*fault)).collect()
}

fn plant(fault: Fault) -> Case {
    use Color::{Narrow, Wide};
    use Shape::{Deep, Flat};
    let in_shard = |of, limits| shard(of, limits, Some(fault));
    let in_tree = |shape, color, tokens, tenures| tree(shape, color, tokens, tenures, 0, Some(fault));
    match fault {
        Fault::NumberWithoutAll | Fault::CommitWithoutAll => in_shard([2, 2, 1], [1, 1, 0, 0, 0]),
        Fault::AckWithoutRecord
        | Fault::AssignBeforeNewView
        | Fault::LearnerAddedEarly
        | Fault::DoubtTakenForNo
        | Fault::StaleViewAccepted => in_shard([2, 3, 1], [2, 1, 1, 0, 0]),
        Fault::DoubtIgnored => in_shard([2, 2, 1], [2, 1, 1, 0, 0]),
        Fault::ReportBeforeFence => in_shard([2, 2, 1], [2, 1, 0, 1, 0]),
        Fault::FenceForgotten => in_shard([1, 2, 1], [2, 1, 2, 1, 0]),
        Fault::LearnerNotFenced => in_shard([1, 2, 1], [2, 1, 2, 0, 0]),
        Fault::ShortestLog => in_shard([2, 2, 1], [2, 1, 0, 0, 0]),
        Fault::LearnerNotTruncated => in_shard([2, 2, 1], [2, 1, 2, 0, 0]),
        Fault::TailByOneMember => in_shard([2, 2, 1], [2, 1, 1, 0, 1]),
        Fault::EpochReused => in_shard([2, 2, 1], [2, 2, 0, 0, 0]),
        Fault::OldGrantCounts => in_tree(Flat, Wide, [1, 2], [2, 1, 1, 1]),
        Fault::OwnerEpochReused | Fault::OwnerStartsEarly => in_tree(Flat, Wide, [1, 1], [2, 1, 1, 1]),
        Fault::HoleOverRecord => in_tree(Flat, Narrow, [2, 0], [1, 1, 1, 1]),
        Fault::TwoEnds => in_tree(Flat, Wide, [2, 1], [2, 1, 1, 1]),
        Fault::SealNotPassed | Fault::InnerAnswersEarly => in_tree(Deep, Wide, [2, 0], [2, 1, 1, 1]),
        Fault::GrantForLater => in_tree(Flat, Wide, [2, 1], [1, 1, 1, 1]),
        Fault::OldParentTaken | Fault::OldChildTaken => in_tree(Flat, Wide, [1, 1], [2, 1, 2, 1]),
    }
}
