//! Executions of one shard with one leaf: members die and return, learners join, leaves are replaced.

use flexlog_protocol::peer::{PeerMessage, ToLeaf, ToMember};
use flexlog_protocol::{Body, Entry, Epoch};

use super::{Cluster, Done, Play, Scenario, assigns, brings};
use crate::net::{Packet, Stream, leaf_site, replica_site};
use crate::shape::Shape;
use crate::world::{Action, World};

const fn shard(members: usize, outside: usize, min_view: u32) -> Cluster {
    Cluster { shape: |of, kind| Shape::one(of.members, kind), members, outside, min_view, slow: false }
}

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "the-other-side-goes-on",
        execution: 1,
        says: "a view of two is cut apart, one side goes on with another member, and the old side is asked for a tail",
        cluster: shard(2, 1, 1),
        script: the_other_side_goes_on,
    },
    Scenario {
        name: "assignment-on-one-member",
        execution: 3,
        says: "an assignment reaches one member, leaf and member die, the others go on, the member returns",
        cluster: shard(3, 0, 2),
        script: |play| assignment_on_one_member(play, false),
    },
    Scenario {
        name: "seal-during-a-fence",
        execution: 4,
        says: "a seal arrives while the memory fence that covers an assignment is running",
        cluster: Cluster { slow: true, ..shard(2, 0, 2) },
        script: seal_during_a_fence,
    },
    Scenario {
        name: "learner-outlives-the-old-members",
        execution: 6,
        says: "a learner joins with assignments in flight, then the old members die one after another",
        cluster: shard(2, 1, 1),
        script: learner_outlives_the_old_members,
    },
    Scenario {
        name: "new-leaf-reaches-one-member",
        execution: 7,
        says: "a new leaf reaches metadata and one member of three, and evicts nobody",
        cluster: shard(3, 0, 2),
        script: new_leaf_reaches_one_member,
    },
    Scenario {
        name: "tail-joins-no-round-under-way",
        execution: 14,
        says: "a tail is asked for while a round is under way that began before the last acknowledged append",
        cluster: shard(2, 0, 2),
        script: tail_joins_no_round_under_way,
    },
    Scenario {
        name: "added-member-is-all-that-is-reached",
        execution: 17,
        says: "the change that adds a member is applied, its answer lost, the leaf dies; the next one reaches that member only",
        cluster: shard(2, 1, 1),
        script: added_member_is_all_that_is_reached,
    },
    Scenario {
        name: "no-number-before-the-new-view",
        execution: 18,
        says: "a new leaf's first entry is stuck on its way to one member",
        cluster: shard(3, 0, 2),
        script: no_number_before_the_new_view,
    },
    Scenario {
        name: "assignment-before-its-record",
        execution: 20,
        says: "a learner has an assignment whose record it is still pulling; once it has joined, the others die",
        cluster: shard(3, 0, 1),
        script: assignment_before_its_record,
    },
    Scenario {
        name: "checkpoint-below-what-is-taken-back",
        execution: 21,
        says: "a member checkpoints with an uncommitted assignment in its log, is dropped, and returns",
        cluster: shard(3, 0, 2),
        script: |play| assignment_on_one_member(play, true),
    },
    Scenario {
        name: "session-on-one-member",
        execution: 23,
        says: "a session is opened on one member only, which dies with the leaf before anybody was told",
        cluster: shard(3, 0, 2),
        script: session_on_one_member,
    },
];

fn the_other_side_goes_on(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    // Replica 0 with the old leaf and what that wants of metadata; replica 1 with all that comes later.
    let old = play.epoch(0);
    play.cut_off(replica_site(0) | leaf_site(old));
    play.hold(move |_, action| matches!(action, Action::Deliver(Stream::ToMetadata { leaf, .. }) if leaf == old));
    play.is_replaced(0);
    play.until("the new side has dropped member 0", |w| w.view(0) == [1])?;
    play.returns(2);
    play.until("it has taken in replica 2", |w| w.view(0) == [1, 2])?;
    play.appends()?;
    let color = play.world.shape.colors[0].0;
    let asks = play.asks_for_tail(0, color);
    play.stays(300, "member 0 cannot tell the tail", |w| w.readers[asks].open() > 0)?;
    play.release();
    play.appends()
}

fn assignment_on_one_member(play: &mut Play<'_>, checkpoint: bool) -> Done {
    play.all_serve()?;
    play.hold_to_member(|member, message| member != 0 && brings(message, assigns));
    play.hold_time();
    play.until("an assignment is durable on member 0 and on no other", |w| alone(w, assigns))?;
    let (place, epoch) = last(&play.world.history.ledgers[0].log);
    if checkpoint {
        let before = play.world.history.ledgers[0].checkpoints.len();
        play.world.want_checkpoint(0);
        play.until("member 0 has written a checkpoint", |w| w.history.ledgers[0].checkpoints.len() > before)?;
        play.until("it is durable", |w| w.member(0).is_some_and(|m| m.fence.is_none() && m.written == m.covered))?;
    }
    the_others_go_on_without_0(play)?;
    play.until("it is in the view, with another entry in that place", |w| {
        let entry = w.history.ledgers[0].log.get(place - 1);
        w.view(0).contains(&0) && entry.is_some_and(|entry| entry.epoch != epoch)
    })?;
    play.appends()
}

fn seal_during_a_fence(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.hold(|w, action| action == Action::FinishFence(0) && fence_covers_an_assignment(w));
    play.hold_time();
    play.until("a fence that covers an assignment runs at member 0", fence_covers_an_assignment)?;
    let old = play.epoch(0);
    play.position_dies(0);
    play.until("member 0 is asked to seal to a new leaf", |w| {
        w.member(0).and_then(|m| m.sealing).is_some_and(|leaf| leaf.epoch > old)
    })?;
    play.stays(150, "it says nothing while the fence runs", |w| w.member(0).is_some_and(|m| m.follows.is_none()))?;
    if play.world.chooser.one_in(2) {
        play.dies(0)?;
        play.returns(0);
    }
    play.release();
    play.all_serve()
}

fn learner_outlives_the_old_members(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.hold_to_member(|member, message| member == 2 && brings(message, |_| true));
    play.returns(2);
    play.until("replica 2 learns", |w| learner(w) == Some(2))?;
    play.hold_time();
    play.until("assignments are on their way to it", |w| {
        w.net.streams().any(|stream| matches!(stream, Stream::ToMember { member: 2, .. }) && on_its_way(w, stream))
    })?;
    play.stays(200, "it does not join without them", |w| !w.view(0).contains(&2))?;
    play.release();
    play.until("it joins", |w| w.view(0) == [0, 1, 2])?;
    for (member, left) in [(0, &[1, 2][..]), (1, &[2])] {
        play.dies(member)?;
        play.until("an old member is dropped", move |w| w.view(0) == left)?;
        play.appends()?;
    }
    Ok(())
}

fn new_leaf_reaches_one_member(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.position_dies(0);
    let next = leaf_site(Epoch(play.world.metadata.epoch + 1));
    play.cut_off(next | replica_site(0));
    let view = play.world.view(0).to_vec();
    play.until("member 0 follows a new leaf", |w| w.member(0).is_some_and(|m| m.follows == w.metadata.holders[0]))?;
    play.stays(800, "nobody is evicted", move |w| w.view(0) == view)?;
    play.release();
    play.all_serve()
}

fn tail_joins_no_round_under_way(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.hold_time();
    play.hold(|_, action| matches!(action, Action::Reader(_)));
    // The round's question waits on its way to member 1 until an assignment is behind it, then the answer waits.
    play.hold_to_member(|member, message| member == 1 && matches!(message, ToMember::Confirm { .. }));
    let color = play.world.shape.colors[0].0;
    let first = play.asks_for_tail(0, color);
    let to_1 = |w: &World| w.process(0).map(|of| Stream::ToMember { leaf: of.incarnation.epoch, member: 1 });
    play.until("a round is under way, and an assignment behind it", |w| {
        let packets: Vec<_> = to_1(w).into_iter().flat_map(|stream| w.net.packets(stream)).collect();
        let asks =
            |packet: &&Packet| matches!(packet, Packet::ToMember(of) if matches!(of.message, ToMember::Confirm { .. }));
        let brings = |packet: &Packet| matches!(packet, Packet::ToMember(of) if brings(&of.message, assigns));
        let waits = w.clients.iter().any(|client| client.waits_for_some(&w.history));
        waits && packets.first().is_some_and(asks) && packets.iter().any(|packet| brings(packet))
    })?;
    play.world.held.clear();
    play.hold_time();
    play.hold(|_, action| matches!(action, Action::Reader(_)));
    play.hold_to_leaf(|member, message| member == 1 && matches!(message, ToLeaf::Confirmed { .. }));
    play.only_retries();
    let before = play.world.history.floor(color);
    play.until("the append is acknowledged", |w| w.history.floor(color) > before)?;
    play.stays(50, "the round is not over", |w| w.readers[first].open() > 0)?;
    let second = play.asks_for_tail(0, color);
    play.stays(200, "who asks now waits for the next one", |w| w.readers[second].open() > 0)?;
    play.release();
    play.until("both have a tail", |w| w.readers[first].open() + w.readers[second].open() == 0)?;
    play.appends()
}

fn added_member_is_all_that_is_reached(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.hold(|_, action| matches!(action, Action::Deliver(Stream::FromMetadata { .. })));
    play.returns(2);
    play.until("metadata has replica 2 in the view", |w| w.view(0) == [0, 1, 2])?;
    play.stays(150, "the leaf does not know", |w| w.serves(0))?;
    play.position_dies(0);
    play.world.held.clear();
    let next = leaf_site(Epoch(play.world.metadata.epoch + 1));
    play.cut_off(next | replica_site(2));
    play.until("the next leaf goes on with replica 2 alone", |w| w.view(0) == [2])?;
    play.appends()?;
    play.release();
    play.until("the others return", |w| w.view(0).len() == 3)?;
    play.appends()
}

fn no_number_before_the_new_view(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.position_dies(0);
    play.hold_to_member(|member, message| {
        member == 2 && brings(message, |entry| matches!(entry.body, Body::NewView(_)))
    });
    play.hold_time();
    play.until("a new leaf's first entry is on its way", |w| {
        let led = w.process(0).and_then(|process| process.led(0));
        led.is_some_and(|led| led.leaf.status().phase == "recovering")
    })?;
    let epoch = play.epoch(0);
    play.stays(400, "it numbers nothing", |w| {
        w.history.ledgers.iter().all(|ledger| !ledger.log.iter().any(|entry| entry.epoch == epoch && assigns(entry)))
    })?;
    play.release();
    play.all_serve()
}

fn assignment_before_its_record(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    play.hold(|w, action| match w.next_packet(action) {
        Some(Packet::Peer(PeerMessage::Pulled(_))) => matches!(action, Action::Deliver(Stream::Peer { to: 2, .. })),
        _ => false,
    });
    loop {
        play.dies(2)?;
        play.until("member 2 is dropped", |w| w.view(0) == [0, 1])?;
        play.returns(2);
        play.until("it learns, and pulls a record, or joins without that", |w| {
            let pulled = |packet: Option<&Packet>| {
                let Some(Packet::Peer(PeerMessage::Pulled(append))) = packet else { return false };
                w.history.tokens.contains_key(&append.token())
            };
            w.view(0).contains(&2) || (0..2).any(|from| pulled(w.net.packets(Stream::Peer { from, to: 2 }).next()))
        })?;
        if !play.world.view(0).contains(&2) {
            break;
        }
    }
    play.hold_time();
    play.stays(200, "it does not join without that", |w| !w.view(0).contains(&2))?;
    play.release();
    play.until("it joins", |w| w.view(0).contains(&2))?;
    // Whoever is the only one to have a record that was asked a number for is not dropped.
    play.only_retries();
    play.world.rest()?;
    play.dies(0)?;
    play.dies(1)?;
    play.world.held.clear();
    play.until("it is alone", |w| w.view(0) == [2])?;
    play.appends()
}

fn session_on_one_member(play: &mut Play<'_>) -> Done {
    let opens = |entry: &Entry| matches!(entry.body, Body::OpenSession { .. });
    play.hold(|_, action| matches!(action, Action::Client(_)));
    play.until("the shard serves", |w| w.serves(0))?;
    play.world.held.clear();
    play.hold_to_member(move |member, message| member != 0 && brings(message, opens));
    play.hold_time();
    play.until("a session is durable on member 0 and on no other", |w| alone(w, opens))?;
    play.stays(300, "nobody is told", |w| !w.clients.iter().any(|client| client.has_session()))?;
    the_others_go_on_without_0(play)?;
    play.until("it returns", |w| w.view(0).len() == 3)?;
    play.appends()
}

/// Member 0 dies with the leaf, and returns when the two others have gone on without it.
fn the_others_go_on_without_0(play: &mut Play<'_>) -> Done {
    play.dies(0)?;
    play.position_dies(0);
    play.release();
    play.until("the others drop member 0", |w| w.view(0) == [1, 2])?;
    play.appends()?;
    play.returns(0);
    Ok(())
}

/// Whether a fence is under way at member 0 and an assignment is among what it covers.
fn fence_covers_an_assignment(w: &World) -> bool {
    let ledger = &w.history.ledgers[0];
    let Some((_, upto)) = w.member(0).and_then(|member| member.fence) else { return false };
    ledger.covers(upto).any(assigns)
}

/// Whether the last entry of member 0 is such, durable, and nowhere else.
fn alone(w: &World, what: fn(&Entry) -> bool) -> bool {
    let ledgers = &w.history.ledgers;
    let log = &ledgers[0].log;
    let is_last = log.last().is_some_and(|entry| what(entry)) && ledgers[0].durable == log.len() as u64;
    is_last && ledgers[1..].iter().all(|other| other.log.len() < log.len())
}

/// How many entries there are, and of which leaf the last one is.
fn last(log: &[std::sync::Arc<Entry>]) -> (usize, Epoch) {
    (log.len(), log.last().map(|entry| entry.epoch).unwrap_or_default())
}

fn learner(w: &World) -> Option<usize> {
    let led = w.process(0).and_then(|process| process.led(0))?;
    led.leaf.status().learner.map(crate::machine::member_of)
}

/// Whether a stream has an assignment in it.
fn on_its_way(w: &World, stream: Stream) -> bool {
    w.net.packets(stream).any(|packet| matches!(packet, Packet::ToMember(of) if brings(&of.message, assigns)))
}
