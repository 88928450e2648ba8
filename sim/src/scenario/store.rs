//! Executions of media, stores and sessions: torn logs, older images, openings that stop half way, tokens that come late.

use std::sync::Arc;

use flexlog_protocol::api::AppendRequest;
use flexlog_protocol::limits::SESSION_IDLE_MICROS;
use flexlog_protocol::peer::ToLeaf;
use flexlog_protocol::{Append, Token};
use uuid::Uuid;

use super::{Cluster, Done, Play, Scenario};
use crate::client::Client;
use crate::faults::Kind;
use crate::machine::{OpenFailure, Process, replica_id};
use crate::net::{Packet, Stream};
use crate::shape::{Shape, shard_of};
use crate::world::{Action, Owner, World};

const fn shard(members: usize) -> Cluster {
    Cluster { shape: |of, kind| Shape::one(of.members, kind), members, outside: 0, min_view: 1, slow: false }
}

/// Two shards of one position; the first has a replica besides.
fn two_shards(of: &Cluster, kind: &Kind) -> Shape {
    let mut shape = Shape::default();
    let root = shape.add_place(None);
    for shard in 0..2 {
        shape.add_shard(root, of.members, if shard == 0 { of.outside } else { 0 }, kind);
        shape.add_color(root, false, shard as u64 + 1, vec![shard]);
    }
    shape
}

pub(super) const ALL: &[Scenario] = &[
    Scenario {
        name: "token-comes-again",
        execution: 5,
        says: "a token is tried again at a learner, at another shard, after a trim, and after its session has expired",
        cluster: Cluster { outside: 1, shape: two_shards, ..shard(2) },
        script: token_comes_again,
    },
    Scenario {
        name: "torn-entry-and-a-whole-one-behind",
        execution: 11,
        says: "power fails with an entry torn and the next one whole; the log goes on, and power fails again",
        cluster: Cluster { slow: true, ..shard(1) },
        script: torn_entry_and_a_whole_one_behind,
    },
    Scenario {
        name: "image-of-yesterday",
        execution: 12,
        says: "a member opens an older image of its store, and metadata is restored from a backup",
        cluster: shard(2),
        script: image_of_yesterday,
    },
    Scenario {
        name: "power-fails-while-stores-open",
        execution: 24,
        says: "power fails on all replicas after each step of opening their stores",
        cluster: shard(3),
        script: power_fails_while_stores_open,
    },
];

fn token_comes_again(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    let sent = play.world.history.sent.iter().rev();
    let mut done = sent.filter(|(token, sent)| sent.is_acknowledged && shard_of(token.shard) == 0);
    let Some(append) = done.find_map(|(_, sent)| sent.variants.first().cloned()) else { return Ok(()) };
    let (token, color) = (append.token(), append.color());
    let number = play.world.history.tokens[&token];
    let elsewhere = play.world.shape.shards[1].replicas.start;
    play.returns(2);
    play.hold_to_leaf(|member, message| member == 2 && matches!(message, ToLeaf::Learned { .. }));
    play.until("replica 2 learns", |w| w.member(2).is_some_and(|member| member.outside.is_some()))?;
    play.hold_time();
    comes_again(play, &append, &[2, elsewhere])?;
    play.stays(1, "replica 2 is no member yet", |w| !w.view(0).contains(&2))?;
    play.release();
    let at = play.world.auditor();
    let mut readers = std::mem::take(&mut play.world.readers);
    readers[at].ask_of(0, color, true, &mut play.world.outside());
    play.world.readers = readers;
    play.until("its record is trimmed", |w| {
        (0..2).all(|member| w.history.ledgers[member].trims.get(&color).is_some_and(|upto| *upto >= number))
    })?;
    comes_again(play, &append, &[0, 1])?;
    // Nobody says a word for longer than a session lasts.
    play.hold(|_, action| matches!(action, Action::Client(_)));
    // One that waits for a member's report is looked at again after as long.
    for _ in 0..3 {
        play.world.rest()?;
        play.world.now = play.world.now.after(SESSION_IDLE_MICROS + 1_000_000);
    }
    play.until("its session is closed", |w| {
        w.history.shards[0].sessions.get(&token.session).is_some_and(|session| session.closed)
    })?;
    comes_again(play, &append, &[0, 1])?;
    play.release();
    play.appends()?;
    let stages = move |w: &World, at: usize| w.member(at).is_some_and(|member| is_staged(member, token));
    play.stays(1, "it has its number, and waits nowhere for another", move |w| {
        w.history.tokens.get(&token) == Some(&number) && !(0..w.machines.len()).any(|at| stages(w, at))
    })
}

/// An append is sent once more, by one who does not listen, and each takes it.
fn comes_again(play: &mut Play<'_>, append: &Arc<Append>, to: &[usize]) -> Done {
    let world = &mut *play.world;
    let at = world.clients.len();
    world.clients.push(Client::new(0, false));
    world.clients[at].alive = false;
    let conn = world.connect(Owner::Client(at));
    let token = append.token();
    for member in to.iter().copied() {
        let (session, low) = (token.session, token.seq);
        let (members, appends) = (vec![replica_id(member)], vec![Arc::clone(append)]);
        let request = AppendRequest { shard: token.shard, session, low, members, appends };
        world.net.push(Stream::Request { conn, member }, Packet::Append(Arc::new(request)));
    }
    play.until("the token has come again", |w| {
        to.iter().all(|member| w.net.packets(Stream::Request { conn, member: *member }).next().is_none())
    })?;
    play.stays(30, "it keeps its number", |w| w.history.tokens.contains_key(&token))
}

/// Whether a member keeps records for a token that has no number there.
fn is_staged(member: &crate::machine::Member, token: Token) -> bool {
    use flexlog_protocol::media::LogStore;
    matches!(member.store.read_staged(token), Ok(Some(_)))
}

fn torn_entry_and_a_whole_one_behind(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    for _ in 0..3 {
        play.hold(|_, action| matches!(action, Action::StartFence(0) | Action::FinishFence(0)));
        play.hold_time();
        play.until("writes are there that no fence covers", |w| {
            let lines = w.machines[0].media.lines().len();
            w.member(0).is_some_and(|member| member.written >= member.covered + 3) && lines >= 6
        })?;
        // One of the first lines is lost, all that comes behind is there.
        let lost = play.world.chooser.below(3);
        play.world.power_cut_but_for(0, !(1 << lost));
        play.world.held.clear();
        play.until("the store is open again", |w| w.member(0).is_some())?;
        play.appends()?;
    }
    Ok(())
}

fn image_of_yesterday(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    let backup = play.world.metadata.stores.clone();
    play.world.power_cut();
    play.all_serve()?;
    play.world.power_cut();
    play.world.machines[0].swap_in_image();
    play.until("the older image is refused", |w| w.counts.refused_images > 0)?;
    play.all_serve()?;
    play.world.power_cut();
    // Metadata that has gone back: the store is not opened, and nothing is written to it.
    let now = std::mem::replace(&mut play.world.metadata.stores, backup);
    let mut refused = false;
    for nonce in 1..10 {
        let World { machines, metadata, .. } = &mut *play.world;
        match machines[0].open_step(metadata, Uuid::from_u128(nonce), false) {
            Ok(_) => {}
            Err(failure) => {
                refused = matches!(failure, OpenFailure::Refused(_));
                break;
            }
        }
    }
    play.world.metadata.stores = now;
    play.stays(1, "the store that is ahead of metadata was refused", |_| refused)?;
    play.all_serve()
}

fn power_fails_while_stores_open(play: &mut Play<'_>) -> Done {
    play.all_serve()?;
    for step in 1..=6 {
        play.world.power_cut();
        play.hold(move |w, action| matches!(action, Action::Open(at) if steps(w, at) >= step));
        play.until("every store is opened so far", |w| (0..3).all(|at| steps(w, at) == step))?;
        play.world.power_cut();
        play.world.held.clear();
        if play.world.chooser.one_in(2) {
            play.until("every store is open", |w| (0..3).all(|at| w.member(at).is_some()))?;
        }
    }
    play.all_serve()
}

/// How many steps of the opening of its store a machine has taken.
fn steps(w: &World, at: usize) -> u32 {
    use crate::machine::Stage;
    match &w.machines[at].process {
        Process::Closed => 0,
        Process::Opening(Stage::Found(_)) => 1,
        Process::Opening(Stage::Told(_)) => 2,
        Process::Opening(Stage::Intended(_)) => 3,
        Process::Opening(Stage::Begun(_)) => 4,
        Process::Opening(Stage::Advanced(_)) => 5,
        Process::Opening(Stage::Counted(_)) => 6,
        Process::Up(_) => 7,
    }
}
