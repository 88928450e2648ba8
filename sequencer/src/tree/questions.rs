//! Tail questions on their way up, in rounds that all who wait share.
//!
//! A question joins only a round that has not been sent: its answer is then no older than it is. One round is under way
//! at most; who asks meanwhile waits for the next.

use flexlog_protocol::Color;

/// What a child asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Question {
    pub(super) child: usize,
    /// The child's name for it.
    pub(super) round: u64,
    pub(super) colors: Vec<Color>,
}

#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: Vec<Question>,
    rounds: u64,
    under_way: Option<(Vec<Color>, Vec<Question>)>,
}

impl Questions {
    pub(super) fn push(&mut self, question: Question) {
        self.waiting.push(question);
    }

    /// Takes out those that wait and need nothing from above.
    pub(super) fn take_if(&mut self, needs_nothing: impl Fn(&Question) -> bool) -> Vec<Question> {
        let (taken, rest) = std::mem::take(&mut self.waiting).into_iter().partition(needs_nothing);
        self.waiting = rest;
        taken
    }

    /// Begins a round with all that wait, if none is under way; `above` tells the colors that must be asked for.
    pub(super) fn begin(&mut self, above: impl Fn(Color) -> bool) -> Option<(u64, Vec<Color>)> {
        if self.under_way.is_some() || self.waiting.is_empty() {
            return None;
        }
        let asked = std::mem::take(&mut self.waiting);
        let mut colors: Vec<Color> =
            asked.iter().flat_map(|question| &question.colors).copied().filter(|color| above(*color)).collect();
        colors.sort_unstable();
        colors.dedup();
        self.rounds += 1;
        self.under_way = Some((colors, asked));
        self.again()
    }

    /// The round under way, for a new parent.
    pub(super) fn again(&self) -> Option<(u64, Vec<Color>)> {
        self.under_way.as_ref().map(|(colors, _)| (self.rounds, colors.clone()))
    }

    /// Those that the answer to this round is for.
    pub(super) fn answered(&mut self, round: u64) -> Vec<Question> {
        if round != self.rounds {
            return Vec::new();
        }
        self.under_way.take().map_or(Vec::new(), |(_, asked)| asked)
    }

    /// A child was replaced: it does not wait any more.
    pub(super) fn forget(&mut self, child: usize) {
        self.waiting.retain(|question| question.child != child);
        if let Some((_, asked)) = &mut self.under_way {
            asked.retain(|question| question.child != child);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RED: Color = Color(1);
    const BLUE: Color = Color(2);
    const OWN: Color = Color(3);

    fn question(child: usize, colors: &[Color]) -> Question {
        Question { child, round: 1, colors: colors.to_vec() }
    }

    #[test]
    fn a_question_joins_no_round_that_was_sent() {
        let mut questions = Questions::default();
        assert_eq!(questions.begin(|_| true), None);
        questions.push(question(0, &[BLUE, OWN]));
        questions.push(question(1, &[RED, BLUE]));
        assert_eq!(questions.begin(|color| color != OWN), Some((1, vec![RED, BLUE])));
        questions.push(question(2, &[RED]));
        assert_eq!(questions.begin(|_| true), None, "one at a time");
        assert_eq!(questions.answered(2), []);
        assert_eq!(questions.answered(1), [question(0, &[BLUE, OWN]), question(1, &[RED, BLUE])]);
        assert_eq!(questions.answered(1), [], "once");
        assert_eq!(questions.begin(|_| true), Some((2, vec![RED])));
        questions.forget(2);
        assert_eq!((questions.again(), questions.answered(2)), (Some((2, vec![RED])), vec![]));
    }

    #[test]
    fn what_needs_nothing_from_above_waits_for_no_round() {
        let mut questions = Questions::default();
        questions.push(question(0, &[OWN]));
        questions.push(question(1, &[OWN, RED]));
        let own = |question: &Question| question.colors.iter().all(|color| *color == OWN);
        assert_eq!(questions.take_if(own), [question(0, &[OWN])]);
        assert_eq!(questions.begin(|color| color != OWN), Some((1, vec![RED])));
    }
}
