//! Executions of a tree: roots, inner positions and leaves are replaced while grants are under way.

use flexlog_protocol::peer::{FromParent, ToMember, ToParent};
use flexlog_protocol::{Body, Color, Entry, Epoch, SeqNum};

use super::{Cluster, Done, Play, Scenario, assigns, brings};
use crate::client::Client;
use crate::faults::Kind;
use crate::net::{Packet, Stream, leaf_site};
use crate::shape::Shape;
use crate::world::{Action, World};

/// The root, and the position between it and leaves.
const ROOT: usize = 0;
const INNER: usize = 1;
/// The leaf of shard 0, and that of shard 1.
const LEAF: usize = 2;
const OTHER: usize = 3;

/// A root over an inner position over the leaf of shard 0. The leaf of shard 1 is beside it, or below the root.
const fn tree(beside: bool) -> Cluster {
    let shape = if beside {
        |of: &Cluster, kind: &Kind| draw(of, kind, INNER)
    } else {
        |of: &Cluster, kind: &Kind| draw(of, kind, ROOT)
    };
    Cluster { shape, members: 2, outside: 0, min_view: 1, slow: false }
}

fn draw(of: &Cluster, kind: &Kind, above_other: usize) -> Shape {
    let mut shape = Shape::default();
    let root = shape.add_place(None);
    let inner = shape.add_place(Some(root));
    let leaves = [shape.add_place(Some(inner)), shape.add_place(Some(above_other))];
    leaves.into_iter().for_each(|leaf| shape.add_shard(leaf, of.members, 0, kind));
    shape.add_color(root, true, 1, vec![0, 1]);
    shape
}

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "leaf-follows-the-old-inner-position",
        execution: 2,
        says: "a new inner position is asked to seal by a new root while a leaf below still has grants of the old root",
        cluster: tree(true),
        script: leaf_follows_the_old_inner_position,
    },
    Scenario {
        name: "child-replaced-while-its-request-is-away",
        execution: 8,
        says: "two leaves share a color, and one is replaced while the request that was merged of both is on its way",
        cluster: tree(true),
        script: child_replaced_while_its_request_is_away,
    },
    Scenario {
        name: "positions-die-together",
        execution: 9,
        says: "the root dies together with the inner position, then a leaf together with that",
        cluster: tree(true),
        script: positions_die_together,
    },
    Scenario {
        name: "shards-settle-apart",
        execution: 13,
        says: "of a wide color one shard, short of members, has a number that is not settled, the other has later ones",
        cluster: Cluster { min_view: 2, ..tree(true) },
        script: shards_settle_apart,
    },
    Scenario {
        name: "cut-off-with-grants",
        execution: 15,
        says: "an inner position is cut off with grants while the root is replaced; its shard commits and tells a tail",
        cluster: tree(false),
        script: cut_off_with_grants,
    },
    Scenario {
        name: "second-seal-behind-a-grant",
        execution: 16,
        says: "a second seal reaches a position while a grant from before the first is on its way to its child",
        cluster: tree(false),
        script: second_seal_behind_a_grant,
    },
    Scenario {
        name: "epoch-ends-twice",
        execution: 19,
        says: "the end of an epoch reaches one shard only, and the next root ends that epoch again",
        cluster: tree(false),
        script: epoch_ends_twice,
    },
];

fn leaf_follows_the_old_inner_position(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    let [old_root, old, leaf] = [ROOT, INNER, LEAF].map(|place| play.epoch(place));
    play.hold(
        move |_, action| matches!(action, Action::Deliver(Stream::Down { from, to }) if to == leaf && from != old),
    );
    play.hold(move |_, action| matches!(action, Action::Relink(of, _) if of == leaf || of == old || of == old_root));
    // Whoever hears of another one below takes nothing from the old one any more.
    play.hold(
        move |_, action| matches!(action, Action::Deliver(Stream::Up { from, to }) if to == old_root && from != old),
    );
    play.is_replaced(INNER);
    play.until("the other leaf follows a new inner position", |w| {
        w.process(INNER).map(|of| of.incarnation.epoch) != Some(old) && w.parent_of(OTHER) == epoch(w, INNER)
    })?;
    play.is_replaced(ROOT);
    play.until("that is asked to seal by a new root", |w| {
        epoch(w, ROOT) != Some(old_root) && w.parent_of(INNER) == epoch(w, ROOT)
    })?;
    let before = play.world.numbered(0);
    play.until("the old root's numbers are settled in shard 0", |w| w.numbered(0) > before)?;
    play.stays(200, "the new root does not count", |w| !w.counts_at(ROOT))?;
    play.release();
    play.all_serve()
}

fn child_replaced_while_its_request_is_away(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    let color = play.world.shape.colors[0].0;
    for _ in 0..50 {
        // Both wait for each other on their way to the inner position, and then for the root.
        play.hold(|w, action| matches!(w.next_up(action), Some(ToParent::Order { .. })) && to_place(w, action, INNER));
        play.until("both leaves want numbers", |w| (0..2).all(|shard| asks(w, shard)))?;
        play.world.held.clear();
        play.hold(|w, action| matches!(w.next_up(action), Some(ToParent::Order { .. })) && to_place(w, action, ROOT));
        let inner = play.world.leader(INNER);
        play.hold(move |w, action| matches!(action, Action::Flush(at) if Some(at) == inner && (0..2).any(|shard| asks(w, shard))));
        play.until("the inner position has both requests", |w| !(0..2).any(|shard| asks(w, shard)))?;
        play.world.flush_counter(inner.unwrap_or_default())?;
        if is_merged(play.world, color) {
            break;
        }
        play.release();
        play.appends()?;
    }
    play.until("the request of both is on its way", |w| is_merged(w, color))?;
    let before = granted(play.world, color);
    play.position_dies(LEAF);
    play.until("its leaf is replaced, and follows", |w| w.serves(0) && w.parent_of(LEAF) == epoch(w, INNER))?;
    play.release();
    play.until("some of what is granted is nobody's, and all of it is settled", |w| nobodys(w, color, before))?;
    play.appends()
}

fn positions_die_together(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    for both in [[ROOT, INNER], [INNER, LEAF]] {
        both.into_iter().for_each(|place| play.position_dies(place));
        play.until("both are replaced", |w| both.iter().all(|place| w.counts_at(*place)))?;
        play.all_serve()?;
    }
    Ok(())
}

fn shards_settle_apart(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    let color = play.world.shape.colors[0].0;
    let dead = play.world.shape.shards[1].replicas.start + 1;
    play.hold_to_member(move |member, message| member == dead && brings(message, assigns));
    play.hold_time();
    play.until("a number of shard 1 is on its way to a member", move |w| under_way(w, dead, color).is_some())?;
    let number = under_way(play.world, dead, color).unwrap_or_default();
    play.dies(dead)?;
    play.world.held.clear();
    play.until("later ones are settled in shard 0", |w| {
        let later = w.history.colors.get(&color).map(|truth| truth.records.range(number..));
        later.is_some_and(|mut later| later.any(|(_, (token, _))| crate::shape::shard_of(token.shard) == 0))
    })?;
    let reader = play.world.auditor();
    let mut readers = std::mem::take(&mut play.world.readers);
    readers[reader].audit(0, &mut play.world.outside());
    play.world.readers = readers;
    play.stays(400, "nobody calls them stable", |w| w.stable(0, color) <= number)?;
    play.returns(dead);
    play.until("all is settled", |w| w.stable(0, color) > number)?;
    play.appends()
}

fn cut_off_with_grants(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    let color = play.world.shape.colors[0].0;
    let old = play.epoch(ROOT);
    play.hold(|w, action| matches!(w.next_down(action), Some(FromParent::Grant { .. })) && to_place(w, action, LEAF));
    play.until("a grant is on its way to the leaf", grant_to_leaf)?;
    let side = leaf_site(old) | play.world.sites_below(INNER);
    play.cut_off(side);
    play.is_replaced(ROOT);
    play.until("a new root has sealed the other leaf", |w| {
        epoch(w, ROOT) != Some(old) && w.parent_of(OTHER) == epoch(w, ROOT)
    })?;
    play.world.held.clear();
    play.hold(|_, action| matches!(action, Action::Retire(_)));
    let before = play.world.numbered(0);
    play.until("the shard commits an assignment", |w| w.numbered(0) > before)?;
    let asks = play.asks_for_tail(0, color);
    play.until("it tells a tail", |w| w.readers[asks].open() == 0)?;
    play.stays(200, "the new root does not count", |w| !w.counts_at(ROOT))?;
    play.release();
    play.all_serve()
}

fn second_seal_behind_a_grant(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.hold(|w, action| matches!(w.next_down(action), Some(FromParent::Grant { .. })) && to_place(w, action, LEAF));
    play.until("a grant is on its way to the leaf", grant_to_leaf)?;
    for _ in 0..2 {
        let old = play.epoch(ROOT);
        play.position_dies(ROOT);
        play.until("a new root seals the inner position", |w| {
            epoch(w, ROOT) != Some(old) && w.parent_of(INNER) == epoch(w, ROOT)
        })?;
        play.stays(100, "it does not count before the leaf has answered", |w| !w.counts_at(ROOT))?;
    }
    play.release();
    play.until("the root counts", |w| w.counts_at(ROOT))?;
    play.all_serve()
}

fn epoch_ends_twice(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    let color = play.world.shape.colors[0].0;
    let old = play.epoch(ROOT);
    // Nobody wants a number, so nothing but a question has the epoch ended.
    play.only_retries();
    play.hold(|_, action| matches!(action, Action::Reader(_)));
    play.until("nothing is open", |w| !w.clients.iter().any(Client::waits))?;
    play.world.rest()?;
    play.position_dies(ROOT);
    play.asks_for_tail(0, color);
    play.until("shard 0 has the end of the old root's epoch", |w| end(w, 0, color, old).is_some())?;
    play.stays(1, "shard 1 has not", |w| end(w, 1, color, old).is_none())?;
    play.position_dies(ROOT);
    play.until("another root has sealed all", |w| w.counts_at(ROOT) && w.parent_of(OTHER) == epoch(w, ROOT))?;
    play.release();
    play.until("shard 1 has the same end", |w| {
        let (here, there) = (end(w, 0, color, old), end(w, 1, color, old));
        there.is_some() && here == there
    })?;
    play.appends()
}

fn epoch(w: &World, place: usize) -> Option<Epoch> {
    w.process(place).map(|process| process.incarnation.epoch)
}

/// Whether a delivery is to a process of this place.
fn to_place(w: &World, action: Action, place: usize) -> bool {
    let Action::Deliver(stream) = action else { return false };
    let process = stream.process().and_then(|epoch| w.sequencer(epoch));
    process.is_some_and(|at| w.sequencers[at].place == place)
}

/// Whether a request of a shard's leaf is next in its stream to the inner position.
fn asks(w: &World, shard: usize) -> bool {
    let (Some(from), Some(to)) = (epoch(w, w.shape.shards[shard].place), epoch(w, INNER)) else { return false };
    let next = w.net.packets(Stream::Up { from, to }).next();
    matches!(next, Some(Packet::Up(up)) if matches!(up.message, ToParent::Order { .. }))
}

/// The end of what a color's owners gave away.
fn granted(w: &World, color: Color) -> SeqNum {
    let last = w.history.colors.get(&color).and_then(|truth| truth.granted.values().max());
    last.copied().unwrap_or_default()
}

/// Whether some grant from a number on is settled, and has numbers without a record.
fn nobodys(w: &World, color: Color, from: SeqNum) -> bool {
    let Some(truth) = w.history.colors.get(&color) else { return false };
    let stable = w.shape.shards.iter().map(|shard| w.stable(shard.replicas.start, color)).min().unwrap_or_default();
    truth.granted.range(from..).any(|(first, end)| {
        let numbers = (end.counter() - first.counter()) as usize;
        *end <= stable && truth.records.range(*first..*end).count() < numbers
    })
}

/// Numbers of a color that a shard's leaf has asked for and not given out.
fn wanted(w: &World, shard: usize, color: Color) -> u64 {
    let led = w.process(w.shape.shards[shard].place).and_then(|process| process.led(shard));
    led.and_then(|led| led.outstanding.get(&color)).copied().unwrap_or_default()
}

/// Whether a request on its way to the root is for more than either leaf wants.
fn is_merged(w: &World, color: Color) -> bool {
    let most = (0..2).map(|shard| wanted(w, shard, color)).max().unwrap_or_default();
    let (Some(from), Some(to)) = (epoch(w, INNER), epoch(w, ROOT)) else { return false };
    w.net.packets(Stream::Up { from, to }).any(|packet| {
        matches!(packet, Packet::Up(up) if matches!(up.message, ToParent::Order { count, .. } if u64::from(count) > most))
    })
}

/// Whether a grant is next in the stream from the inner position to the leaf.
fn grant_to_leaf(w: &World) -> bool {
    let (Some(from), Some(to)) = (epoch(w, INNER), epoch(w, LEAF)) else { return false };
    let next = w.net.packets(Stream::Down { from, to }).next();
    matches!(next, Some(Packet::Down(down)) if matches!(down.message, FromParent::Grant { .. }))
}

/// The first number of a color that is on its way to a member.
fn under_way(w: &World, to: usize, color: Color) -> Option<SeqNum> {
    let streams = w.net.streams().filter(|stream| matches!(stream, Stream::ToMember { member, .. } if *member == to));
    streams.flat_map(|stream| w.net.packets(stream)).find_map(|packet| {
        let Packet::ToMember(of) = packet else { return None };
        let ToMember::Entries { entries, .. } = &of.message else { return None };
        entries.iter().find_map(|entry| first(entry, color))
    })
}

fn first(entry: &Entry, color: Color) -> Option<SeqNum> {
    let Body::Assign(runs) = &entry.body else { return None };
    runs.iter().find(|run| run.color == color).map(|run| run.first)
}

/// Where an epoch ends, as a shard's log has it.
fn end(w: &World, shard: usize, color: Color, epoch: Epoch) -> Option<SeqNum> {
    w.history.shards[shard].committed.iter().find_map(|entry| match &entry.body {
        Body::EpochEnd { color: of, end, .. } if *of == color && end.epoch() == epoch => Some(*end),
        _ => None,
    })
}
