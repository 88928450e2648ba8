//! Messages between the positions of the tree on the wire.
//!
//! Requests, and grants, that follow one another between the same two incarnations are one [`MAX_RUN`]-bounded run there.

use super::flat::{self, Reader};
use super::{incarnation_from, incarnation_to};
use crate::ids::{Color, Position, SeqNum};
use crate::peer::{Between, FromParent, NodeMessage, ToParent};
use crate::wire::{WireError, proto};

const NO_KIND: WireError = WireError::Malformed("a message between positions is of no kind that version 1 knows");
const NOBODY: WireError = WireError::Malformed("a message between positions does not say which incarnation is meant");

/// The most messages of one run.
const MAX_RUN: usize = 4096;
const LONG_RUN: WireError = WireError::Malformed("a run of messages between positions has more than 4096");

/// The first message, and how many of `messages` it stands for: these begin with it.
pub(super) fn up_to(to: Position, message: &Between<ToParent>, messages: &[NodeMessage]) -> (proto::ToParent, usize) {
    use proto::to_parent::Kind;
    let mut run = 1;
    let kind = match &message.message {
        ToParent::Here => Kind::Here(proto::Nothing {}),
        ToParent::Sealed { by, nth, colors } => {
            Kind::Sealed(proto::SealedBelow { by: Some(incarnation_to(*by)), nth: *nth, colors: flat::ends_to(colors) })
        }
        ToParent::Order { .. } => {
            let mut orders = Vec::new();
            let asked = messages.iter().take(MAX_RUN).take_while(|other| match other {
                NodeMessage::Up { to: other_to, message: Between { from, to: addressed, message: said } }
                    if *other_to == to && *from == message.from && *addressed == message.to =>
                {
                    let ToParent::Order { batch, color, count } = said else { return false };
                    orders.extend([*batch, color.0, u64::from(*count)]);
                    true
                }
                _ => false,
            });
            run = asked.count();
            Kind::Orders(proto::Numbers { numbers: orders })
        }
        ToParent::Tails { round, colors } => {
            Kind::Tails(proto::AskTails { round: *round, colors: colors.iter().map(|color| color.0).collect() })
        }
        ToParent::Settle(list) => Kind::Settle(proto::Numbers { numbers: flat::stables_to(list) }),
    };
    let message = proto::ToParent {
        to: to.0,
        from: Some(incarnation_to(message.from)),
        addressed: message.to.map(incarnation_to),
        kind: Some(kind),
    };
    (message, run)
}

pub(super) fn up_from(message: proto::ToParent, into: &mut Vec<NodeMessage>) -> Result<(), WireError> {
    use proto::to_parent::Kind;
    let from = incarnation_from(message.from)?;
    let addressed = message.addressed.map(|to| incarnation_from(Some(to))).transpose()?;
    let to = Position(message.to);
    let up = |said| NodeMessage::Up { to, message: Between { from, to: addressed, message: said } };
    let said = match message.kind.ok_or(NO_KIND)? {
        Kind::Here(proto::Nothing {}) => ToParent::Here,
        Kind::Sealed(sealed) => ToParent::Sealed {
            by: incarnation_from(sealed.by)?,
            nth: sealed.nth,
            colors: flat::ends_from(&sealed.colors)?,
        },
        Kind::Orders(list) => {
            addressed.ok_or(NOBODY)?;
            return run(&list.numbers, into, |item| {
                let (batch, color, count) = (item.u64()?, item.color()?, item.u32()?);
                if count == 0 {
                    return Err(WireError::Malformed("a request for numbers asks for none"));
                }
                Ok(up(ToParent::Order { batch, color, count }))
            });
        }
        Kind::Tails(ask) => {
            ToParent::Tails { round: ask.round, colors: flat::read(&ask.colors, 1, |item| item.color())? }
        }
        Kind::Settle(list) => ToParent::Settle(flat::stables_from(&list.numbers)?),
    };
    if addressed.is_none() && said != ToParent::Here {
        return Err(NOBODY);
    }
    into.push(up(said));
    Ok(())
}

/// The messages of a run.
fn run(
    numbers: &[u64],
    into: &mut Vec<NodeMessage>,
    item: impl Fn(&mut Reader<'_>) -> Result<NodeMessage, WireError>,
) -> Result<(), WireError> {
    let before = into.len();
    let mut reader = Reader::new(numbers);
    while !reader.is_empty() {
        if into.len() - before == MAX_RUN {
            return Err(LONG_RUN);
        }
        into.push(item(&mut reader)?);
    }
    Ok(())
}

/// The first message, and how many of `messages` it stands for: these begin with it.
pub(super) fn down_to(
    to: Position,
    message: &Between<FromParent>,
    messages: &[NodeMessage],
) -> (proto::FromParent, usize) {
    use proto::from_parent::Kind;
    let mut run = 1;
    let kind = match &message.message {
        FromParent::Seal { by, nth } => Kind::Seal(proto::Seal { by: Some(incarnation_to(*by)), nth: *nth }),
        FromParent::Grant { .. } => {
            let mut grants = Vec::new();
            let granted = messages.iter().take(MAX_RUN).take_while(|other| match other {
                NodeMessage::Down { to: other_to, message: Between { from, to: addressed, message: said } }
                    if *other_to == to && *from == message.from && *addressed == message.to =>
                {
                    let FromParent::Grant { batch, color, first, count, ends } = said else { return false };
                    grants.extend([*batch, color.0, first.to_raw(), u64::from(*count), u64::from(ends.is_some())]);
                    grants.extend(ends.map(SeqNum::to_raw));
                    true
                }
                _ => false,
            });
            run = granted.count();
            Kind::Grants(proto::Numbers { numbers: grants })
        }
        FromParent::Tails { round, tails } => {
            let one = |(color, tail, ends): &(Color, SeqNum, Option<SeqNum>)| {
                [color.0, tail.to_raw(), u64::from(ends.is_some()), ends.map_or(0, SeqNum::to_raw)]
            };
            Kind::Tails(proto::ToldTails { round: *round, tails: tails.iter().flat_map(one).collect() })
        }
        FromParent::Stable(list) => Kind::Stable(proto::Numbers { numbers: flat::stables_to(list) }),
    };
    let message = proto::FromParent {
        to: to.0,
        from: Some(incarnation_to(message.from)),
        addressed: message.to.map(incarnation_to),
        kind: Some(kind),
    };
    (message, run)
}

pub(super) fn down_from(message: proto::FromParent, into: &mut Vec<NodeMessage>) -> Result<(), WireError> {
    use proto::from_parent::Kind;
    let from = incarnation_from(message.from)?;
    let addressed = message.addressed.map(|to| incarnation_from(Some(to))).transpose()?;
    let to = Position(message.to);
    let down = |said| NodeMessage::Down { to, message: Between { from, to: addressed, message: said } };
    let said = match message.kind.ok_or(NO_KIND)? {
        Kind::Seal(seal) => FromParent::Seal { by: incarnation_from(seal.by)?, nth: seal.nth },
        Kind::Grants(list) => {
            addressed.ok_or(NOBODY)?;
            return run(&list.numbers, into, |item| {
                let (batch, color, range) = (item.u64()?, item.color()?, item.range()?);
                let ends = if item.bool()? { Some(item.number()?) } else { None };
                Ok(down(FromParent::Grant { batch, color, first: range.first, count: range.count, ends }))
            });
        }
        Kind::Tails(told) => {
            let tails = flat::read(&told.tails, 4, |item| {
                let (color, tail, ended, end) = (item.color()?, item.number()?, item.bool()?, item.number()?);
                Ok((color, tail, ended.then_some(end)))
            })?;
            FromParent::Tails { round: told.round, tails }
        }
        Kind::Stable(list) => FromParent::Stable(flat::stables_from(&list.numbers)?),
    };
    if addressed.is_none() && !matches!(said, FromParent::Seal { .. }) {
        return Err(NOBODY);
    }
    into.push(down(said));
    Ok(())
}
