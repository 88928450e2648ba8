//! What only the store can tell: reads and subscriptions of colors that are on several shards.
//!
//! The member knows how far such a color is settled, and its trim point, holes and ends of epochs; which of the settled
//! numbers are this shard's, it looks up. So an answer follows from what the store found, and from nothing else having
//! happened to the color meanwhile: what was trimmed, or is about to be, the store may have given up or not.

use flexlog_protocol::api::{self, Answer, RequestId};
use flexlog_protocol::peer::ToLeaf;
use flexlog_protocol::{Color, Record, SeqNum};

use crate::color::{ColorState, after, before};
use crate::message::{ConnId, Output};
use crate::readers::{Ask, Question};
use crate::replica::{FetchFor, Replica};

/// The name of a tail question that nobody waits for: it has the leaf follow the color.
const NOBODY: u64 = 0;
/// Colors that it is remembered of that the leaf was asked; what goes beyond is asked again.
const MOST_ASKED: usize = 4096;

impl Replica {
    /// Has the leaf follow a wide color, so that it tells how far it is settled, unless it has told that already.
    pub(crate) fn follow(&mut self, color: Color, out: &mut Vec<Output>) {
        if !color.is_wide() || self.stable(color) > SeqNum::MIN || self.asked.contains(&color) {
            return;
        }
        if self.to_leaf(ToLeaf::TailAsk { ask: NOBODY, color }, out) && self.asked.len() < MOST_ASKED {
            self.asked.insert(color);
        }
    }

    /// Looks in `from..upto`, all of it settled, for the answer to `ask`.
    pub(crate) fn search(&mut self, mut ask: Ask, from: SeqNum, upto: SeqNum, out: &mut Vec<Output>) {
        // An answer of the leaf would not find it any more.
        ask.told = None;
        let (color, question) = (ask.color, ask.question);
        let fetch = self.remember(FetchFor::Search { ask, upto });
        out.push(match question {
            Question::Prev(_) => Output::FetchPrev { fetch, color, upto: before(upto) },
            _ => Output::Fetch { fetch, color, from, upto, max_records: 1, max_bytes: 1 },
        });
    }

    /// What [`Replica::search`] found.
    pub(crate) fn on_searched(
        &mut self,
        mut ask: Ask,
        upto: SeqNum,
        records: Vec<(SeqNum, Record)>,
        out: &mut Vec<Output>,
    ) {
        let id = ask.id;
        let trim = self.colors.get(&ask.color).and_then(ColorState::trim_point);
        let coming = self.log.open_trim(ask.color).filter(|coming| Some(*coming) > trim);
        // What another member sent may be more than was asked for.
        let found = match ask.question {
            Question::Prev(_) => records.into_iter().next_back(),
            _ => records.into_iter().next(),
        };
        let answer = match (ask.question, found) {
            (Question::Read(n), Some((number, record))) if number == n => Answer::Record { id, number, record },
            (Question::Read(n) | Question::Next(n), _) if Some(n) <= trim => return self.decide(ask, out),
            // The commit of the trim wakes it.
            (Question::Read(n) | Question::Next(n), _) if Some(n) <= coming => {
                self.readers.wait(ask);
                return;
            }
            (Question::Next(_), None) => {
                ask.searched = upto;
                return self.decide(ask, out);
            }
            (Question::Next(_), Some((number, record))) => Answer::Record { id, number, record },
            (Question::Prev(_), Some((number, record))) if Some(number) > trim.max(coming) => {
                Answer::Record { id, number, record }
            }
            // Behind what was found there may have been another one.
            (Question::Prev(_), _) if coming.is_some() => {
                self.readers.wait(ask);
                return;
            }
            (Question::Prev(_), _) => match trim {
                Some(point) => Answer::Trimmed { id, point },
                None => Answer::NothingBefore { id },
            },
            (Question::Read(_) | Question::Tail | Question::Trim(_), _) => Answer::Elsewhere { id },
        };
        out.push(Output::Answer { to: ask.from, answer });
    }

    /// Whether what a question asks for, or a part of it, is trimmed or about to be: the answer is no record.
    pub(crate) fn is_trimmed_or_soon(&self, ask: &Ask) -> bool {
        let trim = self.colors.get(&ask.color).and_then(ColorState::trim_point).max(self.log.open_trim(ask.color));
        matches!(ask.question, Question::Read(n) | Question::Next(n) if Some(n) <= trim)
    }

    /// What a fetch for a subscription to a wide color found below `upto`.
    pub(crate) fn on_delivery(
        &mut self,
        (from, id): (ConnId, RequestId),
        upto: SeqNum,
        records: Vec<(SeqNum, Record)>,
        out: &mut Vec<Output>,
    ) {
        let Some(subscription) = self.readers.subscription(from, id) else { return };
        subscription.fetching = false;
        let trim = self.colors.get(&subscription.color).and_then(ColorState::trim_point);
        // What is between two of the records may be gone: the subscriber is to be told so first.
        if Some(subscription.next) <= trim.max(self.log.open_trim(subscription.color)) {
            return self.feed(from, id, out);
        }
        let upto = records.last().map_or(upto, |(last, _)| after(*last));
        subscription.next = upto;
        subscription.credit -= records.iter().map(|(_, record)| api::delivered_cost(record)).sum::<u64>() as i64;
        out.push(Output::Answer { to: from, answer: Answer::Delivered { id, records, upto } });
        self.feed(from, id, out);
    }
}
