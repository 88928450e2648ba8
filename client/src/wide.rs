//! Reads and trims of a color, however many shards it is on.
//!
//! On one shard each is one question. On several: a number is asked for at one shard, and at all others at once where it
//! is elsewhere; neighbours are asked for at all, and what they say is put together by [`crate::core::nearest`]; a trim is
//! done when all shards have done it. All questions of one operation share its deadline.

use flexlog_protocol::api::{Answer, Request, RequestId};
use flexlog_protocol::{SeqNum, ShardId, Time};

use crate::core::To;
use crate::core::nearest::{self, Nearest};
use crate::error::CallError;
use crate::log::{Inner, NextOutcome, PrevOutcome, ReadOutcome};

impl Inner {
    /// How long a node may wait for a number to settle: so that its answer is back before the deadline.
    fn wait_micros(&self, deadline: Time) -> u64 {
        self.handle.left(deadline) / 5 * 4
    }

    /// The shard of those of this color that `n` falls on: any is as good, and so they take turns.
    fn any(&self, n: u64) -> Option<ShardId> {
        self.shards.get((n % self.shards.len().max(1) as u64) as usize).copied()
    }

    async fn ask(
        &self,
        deadline: Time,
        shard: Option<ShardId>,
        request: impl FnOnce(RequestId) -> Request,
    ) -> Result<Answer, CallError> {
        let waiting = self.handle.ask(deadline, shard.map_or(To::Home, To::Shard), request)?;
        self.handle.answer(waiting).await
    }

    /// Asks several shards at once. Their answers are in the order of the questions.
    async fn ask_all(
        &self,
        deadline: Time,
        questions: impl IntoIterator<Item = (ShardId, impl FnOnce(RequestId) -> Request)>,
    ) -> Result<Vec<Result<Answer, CallError>>, CallError> {
        let ask = |(shard, request)| self.handle.ask(deadline, To::Shard(shard), request);
        let waiting = questions.into_iter().map(ask).collect::<Result<Vec<_>, _>>()?;
        let mut answers = Vec::with_capacity(waiting.len());
        for waiting in waiting {
            answers.push(self.handle.answer(waiting).await);
        }
        Ok(answers)
    }

    pub(crate) async fn read(&self, number: SeqNum) -> Result<ReadOutcome, CallError> {
        let (color, deadline) = (self.color, self.handle.deadline());
        let wait_micros = self.wait_micros(deadline);
        let first = self.any(u64::from(number.counter()));
        let answer = self.ask(deadline, first, |id| Request::Read { id, color, number, wait_micros }).await?;
        let said = read_outcome(answer)?;
        if self.shards.len() < 2 || !others_may_know(said.as_ref(), number) {
            return said.ok_or(CallError::Unexpected);
        }
        let wait_micros = self.wait_micros(deadline);
        let others = self.shards.iter().filter(|shard| Some(**shard) != first);
        let questions = others.map(|shard| (*shard, move |id| Request::Read { id, color, number, wait_micros }));
        let others = self.ask_all(deadline, questions).await?.into_iter().map(|answer| answer.and_then(read_outcome));
        put_together(std::iter::once(Ok(said)).chain(others))
    }

    pub(crate) async fn read_next(&self, from: SeqNum) -> Result<NextOutcome, CallError> {
        let (color, deadline) = (self.color, self.handle.deadline());
        let mut next = nearest::Next::new(self.shards.len(), from);
        let whole = self.handle.left(deadline);
        loop {
            let asks = next.asks();
            // The last part of the time is for an answer to get here.
            if asks.is_empty() || self.handle.left(deadline) < whole / 5 {
                break;
            }
            let wait_micros = self.wait_micros(deadline);
            let questions = asks.iter().filter_map(|(shard, from)| {
                let (shard, from) = (*self.shards.get(*shard)?, *from);
                Some((shard, move |id| Request::ReadNext { id, color, tag: None, from, wait_micros }))
            });
            let answers = self.ask_all(deadline, questions).await?;
            for ((shard, _), answer) in asks.into_iter().zip(answers) {
                let said = match answer? {
                    Answer::Record { number, record, .. } => Nearest::Record(number, record),
                    Answer::Trimmed { point, .. } => Nearest::Trimmed(point),
                    Answer::NotYet { tail, .. } => Nearest::None(tail),
                    _ => return Err(CallError::Unexpected),
                };
                next.answered(shard, said);
            }
        }
        Ok(match next.outcome() {
            Nearest::Record(number, record) => NextOutcome::Record { number, record },
            Nearest::Trimmed(point) => NextOutcome::Trimmed { point },
            Nearest::None(tail) => NextOutcome::NotYet { tail },
        })
    }

    pub(crate) async fn read_prev(&self, upto: SeqNum) -> Result<PrevOutcome, CallError> {
        let (color, deadline) = (self.color, self.handle.deadline());
        let wait_micros = self.wait_micros(deadline);
        let question =
            |shard: &ShardId| (*shard, move |id| Request::ReadPrev { id, color, tag: None, upto, wait_micros });
        let mut said = Vec::new();
        for answer in self.ask_all(deadline, self.shards.iter().map(question)).await? {
            said.push(match answer? {
                Answer::Record { number, record, .. } => Some(Nearest::Record(number, record)),
                Answer::Trimmed { point, .. } => Some(Nearest::Trimmed(point)),
                Answer::NothingBefore { .. } => None,
                _ => return Err(CallError::Unexpected),
            });
        }
        Ok(match nearest::previous(said) {
            Some(Nearest::Record(number, record)) => PrevOutcome::Record { number, record },
            Some(Nearest::Trimmed(point)) => PrevOutcome::Trimmed { point },
            Some(Nearest::None(_)) | None => PrevOutcome::Nothing,
        })
    }

    pub(crate) async fn tail(&self) -> Result<SeqNum, CallError> {
        let (color, deadline) = (self.color, self.handle.deadline());
        match self.ask(deadline, self.any(deadline.0), |id| Request::Tail { id, color }).await? {
            Answer::Tail { tail, .. } => Ok(tail),
            _ => Err(CallError::Unexpected),
        }
    }

    /// What all shards have trimmed.
    pub(crate) async fn trim(&self, upto: SeqNum) -> Result<SeqNum, CallError> {
        let color = self.color;
        let questions = self.shards.iter().map(|shard| (*shard, move |id| Request::Trim { id, color, upto }));
        let mut least = None;
        for answer in self.ask_all(self.handle.deadline(), questions).await? {
            let Answer::TrimDone { point, .. } = answer? else { return Err(CallError::Unexpected) };
            least = Some(least.map_or(point, |least: SeqNum| least.min(point)));
        }
        least.ok_or(CallError::Unexpected)
    }
}

/// Whether another shard may have the number that this one said this of: it may be elsewhere, or be given and not settled
/// on all shards, while the shard that has it knows it.
fn others_may_know(said: Option<&ReadOutcome>, number: SeqNum) -> bool {
    said.is_none_or(|said| matches!(said, ReadOutcome::NotYet { tail } if number < *tail))
}

/// What all shards of a color say of one number. One that knows counts, whatever is wrong with the others; when all say that it
/// is elsewhere, nobody has it.
fn put_together(said: impl Iterator<Item = Result<Option<ReadOutcome>, CallError>>) -> Result<ReadOutcome, CallError> {
    let rank = |outcome: &ReadOutcome| match outcome {
        ReadOutcome::Record(_) => 2,
        ReadOutcome::Hole | ReadOutcome::Trimmed { .. } => 1,
        ReadOutcome::NotYet { .. } => 0,
    };
    let (mut best, mut error) = (None, None);
    for said in said {
        match said {
            Ok(None) => {}
            Ok(Some(outcome)) if best.as_ref().is_none_or(|best| rank(&outcome) > rank(best)) => best = Some(outcome),
            Ok(Some(_)) => {}
            Err(why) => error = Some(why),
        }
    }
    match (best, error) {
        (Some(outcome), _) => Ok(outcome),
        (None, Some(error)) => Err(error),
        (None, None) => Ok(ReadOutcome::Hole),
    }
}

/// `None`: it is on another shard.
fn read_outcome(answer: Answer) -> Result<Option<ReadOutcome>, CallError> {
    Ok(Some(match answer {
        Answer::Record { record, .. } => ReadOutcome::Record(record),
        Answer::Hole { .. } => ReadOutcome::Hole,
        Answer::Trimmed { point, .. } => ReadOutcome::Trimmed { point },
        Answer::NotYet { tail, .. } => ReadOutcome::NotYet { tail },
        Answer::Elsewhere { .. } => return Ok(None),
        _ => return Err(CallError::Unexpected),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::{Epoch, Record};

    fn n(counter: u32) -> SeqNum {
        SeqNum::new(Epoch(1), counter)
    }

    fn not_yet(tail: u32) -> ReadOutcome {
        ReadOutcome::NotYet { tail: n(tail) }
    }

    #[test]
    fn a_number_below_the_tail_that_one_shard_does_not_know_yet_is_asked_for_at_the_others() {
        assert!(others_may_know(None, n(5)));
        assert!(others_may_know(Some(&not_yet(6)), n(5)));
        assert!(!others_may_know(Some(&not_yet(5)), n(5)), "no shard has it");
        assert!(!others_may_know(Some(&ReadOutcome::Hole), n(5)));
    }

    #[test]
    fn the_shard_that_knows_a_number_counts() {
        let record = ReadOutcome::Record(Record::new("it").unwrap());
        let said = |list: Vec<Result<Option<ReadOutcome>, CallError>>| put_together(list.into_iter());
        let away = || Err(CallError::Unexpected);
        assert_eq!(said(vec![Ok(Some(not_yet(6))), Ok(None), Ok(Some(record.clone()))]).unwrap(), record);
        assert_eq!(said(vec![Ok(Some(record.clone())), Ok(Some(not_yet(6))), away()]).unwrap(), record);
        assert_eq!(said(vec![Ok(Some(not_yet(6))), Ok(Some(ReadOutcome::Hole))]).unwrap(), ReadOutcome::Hole);
        assert_eq!(said(vec![Ok(Some(not_yet(6))), Ok(None), away()]).unwrap(), not_yet(6));
        assert_eq!(said(vec![Ok(None), Ok(None)]).unwrap(), ReadOutcome::Hole);
        assert!(said(vec![Ok(None), away()]).is_err(), "the one that is away may have it");
    }
}
