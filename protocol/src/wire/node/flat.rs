//! Lists as plain numbers, one item after the other: what the hot messages between processes are made of. A message
//! costs one allocation for its list then, not one for each item, and half the bytes.

use crate::entry::Assign;
use crate::ids::{Color, Epoch, Lsn, SeqNum, SessionId, ShardId, Token};
use crate::limits::MAX_RECORDS_PER_TOKEN;
use crate::peer::{ColorEnd, Range, Staged};
use crate::wire::{MAX_SEQ, WireError};

/// The most items of one list. Nothing that processes report gets near it.
pub(super) const MAX_ITEMS: usize = 1 << 22;

const ENDS_EARLY: WireError = WireError::Malformed("a list of numbers ends inside an item");
pub(super) const TOO_MANY: WireError = WireError::Malformed("a message lists more items than it may");

/// Numbers of a list that are still to be read.
pub(super) struct Reader<'a> {
    rest: &'a [u64],
}

impl<'a> Reader<'a> {
    pub(super) fn new(numbers: &'a [u64]) -> Self {
        Self { rest: numbers }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn u64(&mut self) -> Result<u64, WireError> {
        let (first, rest) = self.rest.split_first().ok_or(ENDS_EARLY)?;
        self.rest = rest;
        Ok(*first)
    }

    pub(super) fn u32(&mut self) -> Result<u32, WireError> {
        u32::try_from(self.u64()?).map_err(|_| WireError::Malformed("a number does not fit into 32 bits"))
    }

    pub(super) fn bool(&mut self) -> Result<bool, WireError> {
        match self.u64()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(WireError::Malformed("a flag is neither 0 nor 1")),
        }
    }

    pub(super) fn color(&mut self) -> Result<Color, WireError> {
        self.u64().map(Color)
    }

    pub(super) fn number(&mut self) -> Result<SeqNum, WireError> {
        self.u64().map(SeqNum::from_raw)
    }

    fn session(&mut self) -> Result<SessionId, WireError> {
        Ok(SessionId { epoch: Epoch(self.u32()?), lsn: Lsn(self.u64()?) })
    }

    fn token(&mut self) -> Result<Token, WireError> {
        let (shard, session) = (ShardId(self.u32()?), self.session()?);
        token(shard, session, self.u64()?)
    }

    pub(super) fn range(&mut self) -> Result<Range, WireError> {
        range(self.number()?, self.u32()?)
    }
}

/// All items of a list whose items have at least `least` numbers.
pub(super) fn read<T>(
    numbers: &[u64],
    least: usize,
    item: impl Fn(&mut Reader<'_>) -> Result<T, WireError>,
) -> Result<Vec<T>, WireError> {
    if numbers.len() / least > MAX_ITEMS {
        return Err(TOO_MANY);
    }
    let mut reader = Reader::new(numbers);
    let mut items = Vec::with_capacity(numbers.len() / least);
    while !reader.is_empty() {
        items.push(item(&mut reader)?);
    }
    Ok(items)
}

/// A token whose seq is one.
pub(super) fn token(shard: ShardId, session: SessionId, seq: u64) -> Result<Token, WireError> {
    if seq == 0 || seq > MAX_SEQ {
        return Err(WireError::Malformed("a token's seq is from 1 to 2^63 - 1"));
    }
    Ok(Token { shard, session, seq })
}

/// A range that has numbers, all of one epoch.
pub(super) fn range(first: SeqNum, count: u32) -> Result<Range, WireError> {
    if count == 0 || first.plus(count).is_none() {
        return Err(WireError::Malformed("a range of numbers is empty or does not fit into its epoch"));
    }
    Ok(Range { first, count })
}

fn token_to(token: Token) -> [u64; 4] {
    [u64::from(token.shard.0), u64::from(token.session.epoch.0), token.session.lsn.0, token.seq]
}

pub(super) fn assigns_to(list: &[Assign]) -> Vec<u64> {
    let mut numbers = Vec::with_capacity(list.len() * 8);
    for assign in list {
        let Assign { token, tokens, records, color, first } = *assign;
        numbers.extend(token_to(token));
        numbers.extend([u64::from(tokens), u64::from(records), color.0, first.to_raw()]);
    }
    numbers
}

pub(super) fn assigns_from(numbers: &[u64]) -> Result<Vec<Assign>, WireError> {
    read(numbers, 8, |item| {
        let (token, tokens, records) = (item.token()?, item.u32()?, item.u32()?);
        let assign = Assign { token, tokens, records, color: item.color()?, first: item.number()? };
        if assign.is_sound() {
            Ok(assign)
        } else {
            Err(WireError::Malformed("an assignment's counts do not fit into an epoch"))
        }
    })
}

pub(super) fn staged_to(list: &[Staged]) -> Vec<u64> {
    let mut numbers = Vec::with_capacity(list.len() * 7);
    for Staged { token, color, records, digest } in list {
        numbers.extend(token_to(*token));
        numbers.extend([color.0, u64::from(*records), *digest]);
    }
    numbers
}

pub(super) fn staged_from(numbers: &[u64]) -> Result<Vec<Staged>, WireError> {
    read(numbers, 7, |item| {
        let (token, color, records, digest) = (item.token()?, item.color()?, item.u32()?, item.u64()?);
        if records == 0 || records as usize > MAX_RECORDS_PER_TOKEN {
            return Err(WireError::Malformed("a staged token has no records, or more than an append may have"));
        }
        Ok(Staged { token, color, records, digest })
    })
}

pub(super) fn ends_to(list: &[ColorEnd]) -> Vec<u64> {
    let mut numbers = Vec::with_capacity(list.len() * 5);
    for ColorEnd { color, end, closed, stable, own } in list {
        numbers.extend([color.0, end.to_raw(), u64::from(*closed), stable.to_raw(), own.len() as u64]);
        numbers.extend(own.iter().flat_map(|range| [range.first.to_raw(), u64::from(range.count)]));
    }
    numbers
}

pub(super) fn ends_from(numbers: &[u64]) -> Result<Vec<ColorEnd>, WireError> {
    read(numbers, 5, |item| {
        let (color, end, closed, stable) = (item.color()?, item.number()?, item.bool()?, item.number()?);
        let count = item.u64()?;
        if count > (item.rest.len() / 2) as u64 {
            return Err(ENDS_EARLY);
        }
        let own = (0..count).map(|_| item.range()).collect::<Result<Vec<_>, _>>()?;
        if !own.windows(2).all(|pair| pair[0].end() <= pair[1].first) {
            return Err(WireError::Malformed("the ranges of a color are not in ascending order and apart"));
        }
        Ok(ColorEnd { color, end, closed, stable, own })
    })
}

pub(super) fn sessions_to(list: &[SessionId]) -> Vec<u64> {
    list.iter().flat_map(|session| [u64::from(session.epoch.0), session.lsn.0]).collect()
}

pub(super) fn sessions_from(numbers: &[u64]) -> Result<Vec<SessionId>, WireError> {
    read(numbers, 2, |item| item.session())
}

pub(super) fn stables_to(list: &[(Color, SeqNum)]) -> Vec<u64> {
    list.iter().flat_map(|(color, number)| [color.0, number.to_raw()]).collect()
}

pub(super) fn stables_from(numbers: &[u64]) -> Result<Vec<(Color, SeqNum)>, WireError> {
    read(numbers, 2, |item| Ok((item.color()?, item.number()?)))
}
