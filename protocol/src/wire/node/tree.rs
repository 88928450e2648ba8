//! Messages between the positions of the tree on the wire.

use super::flat;
use super::{incarnation_from, incarnation_to};
use crate::ids::{Color, Position, SeqNum};
use crate::peer::{Between, FromParent, NodeMessage, ToParent};
use crate::wire::{WireError, proto};

const NO_KIND: WireError = WireError::Malformed("a message between positions is of no kind that version 1 knows");
const NOBODY: WireError = WireError::Malformed("a message between positions does not say which incarnation is meant");

pub(super) fn up_to(to: Position, message: &Between<ToParent>) -> proto::ToParent {
    use proto::to_parent::Kind;
    let kind = match &message.message {
        ToParent::Here => Kind::Here(proto::Nothing {}),
        ToParent::Sealed { by, colors } => {
            Kind::Sealed(proto::SealedBelow { by: Some(incarnation_to(*by)), colors: flat::ends_to(colors) })
        }
        ToParent::Order { batch, color, count } => {
            Kind::Order(proto::Order { batch: *batch, color: color.0, count: *count })
        }
        ToParent::Tails { round, colors } => {
            Kind::Tails(proto::AskTails { round: *round, colors: colors.iter().map(|color| color.0).collect() })
        }
        ToParent::Settle(list) => Kind::Settle(proto::Numbers { numbers: flat::stables_to(list) }),
    };
    proto::ToParent {
        to: to.0,
        from: Some(incarnation_to(message.from)),
        addressed: message.to.map(incarnation_to),
        kind: Some(kind),
    }
}

pub(super) fn up_from(message: proto::ToParent) -> Result<NodeMessage, WireError> {
    use proto::to_parent::Kind;
    let said = match message.kind.ok_or(NO_KIND)? {
        Kind::Here(proto::Nothing {}) => ToParent::Here,
        Kind::Sealed(sealed) => {
            ToParent::Sealed { by: incarnation_from(sealed.by)?, colors: flat::ends_from(&sealed.colors)? }
        }
        Kind::Order(order) => {
            if order.count == 0 {
                return Err(WireError::Malformed("a request for numbers asks for none"));
            }
            ToParent::Order { batch: order.batch, color: Color(order.color), count: order.count }
        }
        Kind::Tails(ask) => {
            ToParent::Tails { round: ask.round, colors: flat::read(&ask.colors, 1, |item| item.color())? }
        }
        Kind::Settle(list) => ToParent::Settle(flat::stables_from(&list.numbers)?),
    };
    let from = incarnation_from(message.from)?;
    let addressed = message.addressed.map(|to| incarnation_from(Some(to))).transpose()?;
    if addressed.is_none() && said != ToParent::Here {
        return Err(NOBODY);
    }
    Ok(NodeMessage::Up { to: Position(message.to), message: Between { from, to: addressed, message: said } })
}

pub(super) fn down_to(to: Position, message: &Between<FromParent>) -> proto::FromParent {
    use proto::from_parent::Kind;
    let kind = match &message.message {
        FromParent::Seal { by } => Kind::Seal(incarnation_to(*by)),
        FromParent::Grant { batch, color, first, count, ends } => Kind::Grant(proto::Grant {
            batch: *batch,
            color: color.0,
            first: first.to_raw(),
            count: *count,
            ends: ends.map(SeqNum::to_raw),
        }),
        FromParent::Tails { round, tails } => {
            let one = |(color, tail, ends): &(Color, SeqNum, Option<SeqNum>)| {
                [color.0, tail.to_raw(), u64::from(ends.is_some()), ends.map_or(0, SeqNum::to_raw)]
            };
            Kind::Tails(proto::ToldTails { round: *round, tails: tails.iter().flat_map(one).collect() })
        }
        FromParent::Stable(list) => Kind::Stable(proto::Numbers { numbers: flat::stables_to(list) }),
    };
    proto::FromParent {
        to: to.0,
        from: Some(incarnation_to(message.from)),
        addressed: message.to.map(incarnation_to),
        kind: Some(kind),
    }
}

pub(super) fn down_from(message: proto::FromParent) -> Result<NodeMessage, WireError> {
    use proto::from_parent::Kind;
    let said = match message.kind.ok_or(NO_KIND)? {
        Kind::Seal(by) => FromParent::Seal { by: incarnation_from(Some(by))? },
        Kind::Grant(grant) => {
            let range = flat::range(SeqNum::from_raw(grant.first), grant.count)?;
            FromParent::Grant {
                batch: grant.batch,
                color: Color(grant.color),
                first: range.first,
                count: range.count,
                ends: grant.ends.map(SeqNum::from_raw),
            }
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
    let from = incarnation_from(message.from)?;
    let addressed = message.addressed.map(|to| incarnation_from(Some(to))).transpose()?;
    if addressed.is_none() && !matches!(said, FromParent::Seal { .. }) {
        return Err(NOBODY);
    }
    Ok(NodeMessage::Down { to: Position(message.to), message: Between { from, to: addressed, message: said } })
}
