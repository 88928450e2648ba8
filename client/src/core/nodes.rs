//! Which nodes there are, which of them are to be connected to, and whom a question goes to.
//!
//! A node is named by the order in which its address was heard of; the addresses that the user gave come first and are
//! *homes*: any of them answers what is asked of the cluster as a whole. Where the members of a shard are is known from
//! the last lookup of one of its colors. A [`Route`] is a list of nodes that can all answer the same, and a place in it:
//! it stays there until that node is away or not ready. Nothing here knows a connection: the caller says when one came,
//! went, or could not be made.

use rustc_hash::FxHashMap;
use uuid::Uuid;

use flexlog_protocol::api::ShardInfo;
use flexlog_protocol::{ReplicaId, ShardId, Time, View};

/// A node, by the order in which its address was heard of. 0 is the first that the user gave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The first node that the user gave.
    pub const HOME: Self = Self(0);
}

/// Whom to ask.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum To {
    /// Whoever knows the cluster: one of the nodes that the user gave, or another where none of them is there.
    Home,
    /// A node with a member of this shard.
    Shard(ShardId),
}

/// A connection that nothing has needed for so long is dropped, in microseconds.
const IDLE_MICROS: u64 = 60_000_000;
/// How long a shard is not looked up again, in microseconds.
const LOOKUP_AGAIN_MICROS: u64 = 2_000_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    /// There was no attempt yet, or the first is under way.
    Unknown,
    Up,
    Away,
}

#[derive(Debug)]
struct Node {
    address: String,
    link: Link,
    wanted: bool,
    /// May have something to send.
    woken: bool,
    /// When something was last seen to need it.
    needed: Time,
}

/// The nodes that are known.
#[derive(Debug)]
pub(super) struct Nodes {
    list: Vec<Node>,
    by_address: FxHashMap<String, NodeId>,
    /// Whether some node is wanted that was not, or the other way round.
    changed: bool,
}

impl Nodes {
    fn id_of(&mut self, address: &str) -> NodeId {
        if let Some(id) = self.by_address.get(address) {
            return *id;
        }
        let id = NodeId(self.list.len() as u32);
        let node = Node {
            address: address.to_owned(),
            link: Link::Unknown,
            wanted: false,
            woken: false,
            needed: Time::default(),
        };
        self.list.push(node);
        self.by_address.insert(address.to_owned(), id);
        id
    }

    fn link(&self, node: NodeId) -> Link {
        self.list.get(node.0 as usize).map_or(Link::Unknown, |node| node.link)
    }

    pub(super) fn is_up(&self, node: NodeId) -> bool {
        self.link(node) == Link::Up
    }

    fn is_away(&self, node: NodeId) -> bool {
        self.link(node) == Link::Away
    }

    /// There may be something to send to this node, once it is connected: it is to be.
    pub(super) fn wake(&mut self, node: NodeId) {
        if let Some(node) = self.list.get_mut(node.0 as usize) {
            node.woken = true;
            self.changed |= !node.wanted;
            node.wanted = true;
        }
    }

    fn set(&mut self, node: NodeId, link: Link) {
        if let Some(node) = self.list.get_mut(node.0 as usize) {
            node.link = link;
            node.woken = true;
        }
    }

    pub(super) fn take_woken(&mut self, into: &mut Vec<NodeId>) {
        for (id, node) in self.list.iter_mut().enumerate() {
            if std::mem::take(&mut node.woken) {
                into.push(NodeId(id as u32));
            }
        }
    }

    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = (NodeId, &str)> {
        let wanted = self.list.iter().enumerate().filter(|(_, node)| node.wanted);
        wanted.map(|(id, node)| (NodeId(id as u32), node.address.as_str()))
    }
}

/// Nodes that can answer the same, and which of them is asked.
#[derive(Debug, Clone)]
pub(super) struct Route {
    nodes: Vec<NodeId>,
    at: usize,
}

impl Route {
    fn new(nodes: Vec<NodeId>, start: usize) -> Self {
        let at = start % nodes.len().max(1);
        Self { nodes, at }
    }

    /// Whom to ask now: the one that was asked before, the next one where that is away, and it again where all are.
    pub(super) fn pick(&mut self, nodes: &Nodes) -> NodeId {
        let count = self.nodes.len();
        let there = (0..count).map(|step| (self.at + step) % count).find(|at| !nodes.is_away(self.nodes[*at]));
        self.at = there.unwrap_or(self.at);
        self.nodes.get(self.at).copied().unwrap_or(NodeId::HOME)
    }

    /// `node` did not do it: the next one is asked, unless that was decided already.
    pub(super) fn move_on(&mut self, node: NodeId) {
        if self.nodes.get(self.at) == Some(&node) {
            self.at = (self.at + 1) % self.nodes.len();
        }
    }

    /// Whether there is somebody else to ask.
    pub(super) fn has_choice(&self) -> bool {
        self.nodes.len() > 1
    }
}

/// Members of a shard that are on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lane {
    pub node: NodeId,
    pub members: Vec<ReplicaId>,
}

/// Where a shard is.
#[derive(Debug)]
pub(super) struct Place {
    pub view: View,
    /// One for each node.
    pub lanes: Vec<Lane>,
    pub route: Route,
    /// A color that it has, to look it up again by.
    name: String,
    stale: bool,
    looked_up: Option<Time>,
}

/// The nodes, and the ways to them.
#[derive(Debug)]
pub(super) struct Paths {
    pub nodes: Nodes,
    homes: Route,
    places: FxHashMap<ShardId, Place>,
    /// Whether some place may be stale.
    stale: bool,
    /// Where this client begins among the members of a shard, so that clients spread.
    spread: usize,
    sweep: Time,
}

impl Paths {
    /// `homes` are the addresses that the user gave, at least one.
    pub(super) fn new(seed: Uuid, homes: &[String]) -> Self {
        let mut nodes = Nodes { list: Vec::new(), by_address: FxHashMap::default(), changed: true };
        let mut ids: Vec<_> = homes.iter().map(|home| nodes.id_of(home)).collect();
        ids.sort_unstable();
        ids.dedup();
        if let Some(first) = nodes.list.first_mut() {
            first.wanted = true;
        }
        Self {
            nodes,
            homes: Route::new(ids, 0),
            places: FxHashMap::default(),
            stale: false,
            // The top bits of a random uuid: its version is elsewhere.
            spread: (seed.as_u128() >> 96) as usize,
            sweep: Time::default(),
        }
    }

    /// Takes in where a shard is, as `from` says. Whether that is news.
    pub(super) fn learn(&mut self, from: NodeId, info: &ShardInfo, name: &str) -> bool {
        if self.places.get(&info.shard).is_some_and(|place| place.view.number > info.view.number) {
            return false;
        }
        let mut lanes: Vec<Lane> = Vec::new();
        for (member, address) in info.view.members.iter().zip(&info.addresses) {
            let node = if address.is_empty() { from } else { self.nodes.id_of(address) };
            match lanes.iter_mut().find(|lane| lane.node == node) {
                Some(lane) => lane.members.push(*member),
                None => lanes.push(Lane { node, members: vec![*member] }),
            }
        }
        if let Some(place) = self.places.get_mut(&info.shard) {
            place.stale = false;
            if place.lanes == lanes && place.view == info.view {
                return false;
            }
        }
        let nodes: Vec<_> = lanes.iter().map(|lane| lane.node).collect();
        let before = self.places.get(&info.shard);
        // Whoever was read from goes on being it.
        let start = before.and_then(|place| {
            let reader = place.route.nodes.get(place.route.at)?;
            nodes.iter().position(|node| node == reader)
        });
        let start = start.unwrap_or_else(|| self.spread.wrapping_add(info.shard.0 as usize));
        let looked_up = before.and_then(|place| place.looked_up);
        let route = Route::new(nodes, start);
        let place = Place { view: info.view.clone(), lanes, route, name: name.to_owned(), stale: false, looked_up };
        self.places.insert(info.shard, place);
        true
    }

    pub(super) fn place(&self, shard: ShardId) -> Option<&Place> {
        self.places.get(&shard)
    }

    /// Whom to ask, who is told that there is something to send.
    pub(super) fn pick(&mut self, to: To) -> NodeId {
        let node = match to {
            To::Shard(shard) if self.places.contains_key(&shard) => {
                self.places.get_mut(&shard).map_or(NodeId::HOME, |place| place.route.pick(&self.nodes))
            }
            _ => {
                let home = self.homes.pick(&self.nodes);
                let any = || (0..self.nodes.list.len() as u32).map(NodeId).find(|node| self.nodes.is_up(*node));
                if self.nodes.is_away(home) { any().unwrap_or(home) } else { home }
            }
        };
        self.nodes.wake(node);
        if self.nodes.is_away(node) {
            // Whoever is back first is to answer.
            let Self { nodes, homes, places, .. } = self;
            let route = match to {
                To::Shard(shard) => places.get(&shard).map(|place| &place.route),
                To::Home => None,
            };
            route.unwrap_or(homes).nodes.iter().for_each(|node| nodes.wake(*node));
        }
        node
    }

    /// `node` did not do what it was asked.
    pub(super) fn move_on(&mut self, to: To, node: NodeId) {
        match to {
            To::Home => self.homes.move_on(node),
            To::Shard(shard) => {
                if let Some(place) = self.places.get_mut(&shard) {
                    place.route.move_on(node);
                }
            }
        }
    }

    pub(super) fn connected(&mut self, node: NodeId) {
        self.nodes.set(node, Link::Up);
    }

    /// The connection is gone, or could not be made.
    pub(super) fn away(&mut self, node: NodeId) {
        // One that was let go is not away: whoever asks for it makes an attempt of its own.
        let is_home = self.homes.nodes.contains(&node);
        let wanted = is_home || self.nodes.list.get(node.0 as usize).is_some_and(|node| node.wanted);
        self.nodes.set(node, if wanted { Link::Away } else { Link::Unknown });
        // What a home has, it has for good; members elsewhere may have moved.
        if !is_home {
            for place in self.places.values_mut() {
                if place.lanes.iter().any(|lane| lane.node == node) {
                    place.stale = true;
                    self.stale = true;
                }
            }
        }
    }

    /// A member spoke of a view of its shard.
    pub(super) fn heard_of(&mut self, shard: ShardId, view: &View) {
        if let Some(place) = self.places.get_mut(&shard)
            && place.view.number < view.number
        {
            place.stale = true;
            self.stale = true;
        }
    }

    /// The color to look up, where what is known of a shard may not be so any more.
    pub(super) fn take_stale(&mut self, now: Time) -> Option<String> {
        if !self.stale {
            return None;
        }
        self.stale = false;
        let mut found = None;
        for place in self.places.values_mut().filter(|place| place.stale) {
            if found.is_none() && place.looked_up.is_none_or(|at| now >= at.after(LOOKUP_AGAIN_MICROS)) {
                place.stale = false;
                place.looked_up = Some(now);
                found = Some(place.name.clone());
            } else {
                self.stale = true;
            }
        }
        found
    }

    /// Whether it is time to see which connections nothing needs any more.
    pub(super) fn is_sweep_due(&self, now: Time) -> bool {
        now >= self.sweep && self.nodes.list.len() > 1
    }

    /// `needs` says of each node whether something needs it now.
    pub(super) fn sweep(&mut self, now: Time, needs: impl Fn(NodeId) -> bool) {
        self.sweep = now.after(IDLE_MICROS / 4);
        let home = self.homes.pick(&self.nodes);
        for (id, node) in self.nodes.list.iter_mut().enumerate() {
            let id = NodeId(id as u32);
            if id == home || id == NodeId::HOME || needs(id) {
                node.needed = now;
            } else if node.wanted && now >= node.needed.after(IDLE_MICROS) {
                node.wanted = false;
                node.link = if node.link == Link::Away { Link::Unknown } else { node.link };
                self.nodes.changed = true;
            }
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let extra = self.nodes.list.iter().skip(1).any(|node| node.wanted);
        let lookup = self.places.values().filter(|place| self.stale && place.stale);
        let lookup = lookup.map(|place| place.looked_up.map_or(Time::default(), |at| at.after(LOOKUP_AGAIN_MICROS)));
        extra.then_some(self.sweep).into_iter().chain(lookup).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexlog_protocol::ViewNumber;

    fn info(view: u32, addresses: &[&str]) -> ShardInfo {
        ShardInfo {
            shard: ShardId(7),
            view: View { number: ViewNumber(view), members: (1..=addresses.len() as u32).map(ReplicaId).collect() },
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
        }
    }

    fn paths(homes: &[&str]) -> Paths {
        let homes: Vec<_> = homes.iter().map(|home| (*home).to_owned()).collect();
        Paths::new(Uuid::nil(), &homes)
    }

    #[test]
    fn members_are_grouped_by_their_nodes() {
        let mut paths = paths(&["a"]);
        assert!(paths.learn(NodeId(0), &info(1, &["", "b", "", "c"]), "x"));
        let lanes: Vec<_> =
            paths.place(ShardId(7)).unwrap().lanes.iter().map(|lane| (lane.node.0, lane.members.len())).collect();
        assert_eq!(lanes, [(0, 2), (1, 1), (2, 1)]);
        assert!(!paths.learn(NodeId(0), &info(1, &["", "b", "", "c"]), "x"), "no news");
        assert!(!paths.learn(NodeId(0), &info(0, &["d"]), "x"), "older than what is known");
        assert!(paths.learn(NodeId(2), &info(2, &["a", "b"]), "x"));
        assert_eq!(paths.place(ShardId(7)).unwrap().lanes.len(), 2);
        // Nobody is connected to before there is something to ask.
        assert_eq!(paths.nodes.wanted().map(|(id, _)| id.0).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_route_stays_until_its_node_is_away_or_not_ready() {
        let mut paths = paths(&["a"]);
        paths.learn(NodeId(0), &info(1, &["", "b", "c"]), "x");
        let to = To::Shard(ShardId(7));
        let first = paths.pick(to);
        assert_eq!(paths.pick(to), first);
        paths.away(first);
        let second = paths.pick(to);
        assert_ne!(second, first);
        paths.connected(first);
        assert_eq!(paths.pick(to), second, "it does not go back");
        paths.move_on(to, first);
        assert_eq!(paths.pick(to), second, "somebody else's trouble");
        paths.move_on(to, second);
        let third = paths.pick(to);
        assert!(third != first && third != second);
        for node in [first, second, third] {
            paths.away(node);
        }
        assert_eq!(paths.pick(to), third);
        paths.connected(second);
        assert_eq!(paths.pick(to), second);
    }

    #[test]
    fn clients_spread_over_the_members() {
        let mut seen = std::collections::BTreeSet::new();
        for i in 0..64_u128 {
            let mut paths = Paths::new(Uuid::from_u128(i << 96), &["a".into()]);
            paths.learn(NodeId(0), &info(1, &["", "b", "c"]), "x");
            seen.insert(paths.pick(To::Shard(ShardId(7))));
        }
        assert_eq!(seen.len(), 3);
    }

    #[test]
    fn without_a_home_anyone_answers_for_the_cluster() {
        let mut paths = paths(&["a", "b"]);
        paths.learn(NodeId(0), &info(1, &["", "c"]), "x");
        assert_eq!(paths.pick(To::Home), NodeId(0));
        paths.away(NodeId(0));
        assert_eq!(paths.pick(To::Home), NodeId(1));
        paths.away(NodeId(1));
        paths.connected(NodeId(2));
        assert_eq!(paths.pick(To::Home), NodeId(2));
        paths.away(NodeId(2));
        paths.pick(To::Home);
        assert!(paths.nodes.wanted().map(|(id, _)| id.0).take(2).eq([0, 1]), "whoever is back first answers");
        paths.connected(NodeId(0));
        assert_eq!(paths.pick(To::Home), NodeId(0));
    }

    #[test]
    fn what_nothing_needs_is_dropped_after_a_while_and_home_is_not() {
        let mut paths = paths(&["a"]);
        paths.learn(NodeId(0), &info(1, &["b", "c"]), "x");
        paths.nodes.wake(NodeId(1));
        paths.nodes.wake(NodeId(2));
        let wanted = |paths: &Paths| paths.nodes.wanted().map(|(id, _)| id.0).collect::<Vec<_>>();
        for step in 0..=8 {
            let now = Time(step * IDLE_MICROS / 4);
            assert!(paths.is_sweep_due(now) && paths.next_deadline() == Some(now));
            paths.sweep(now, |node| node == NodeId(2) || step == 0);
            assert_eq!(wanted(&paths), if step < 4 { vec![0, 1, 2] } else { vec![0, 2] });
        }
        paths.nodes.wake(NodeId(1));
        assert_eq!(wanted(&paths), [0, 1, 2]);
    }

    #[test]
    fn a_shard_is_looked_up_again_when_its_view_is_another_or_a_member_is_away() {
        let mut paths = paths(&["a"]);
        paths.learn(NodeId(0), &info(1, &["", "b"]), "x");
        paths.away(NodeId(0));
        assert_eq!(paths.take_stale(Time(5)), None, "where its home is, is known");
        paths.heard_of(ShardId(7), &info(1, &["", "b"]).view);
        assert_eq!(paths.take_stale(Time(5)), None);
        paths.heard_of(ShardId(7), &info(2, &["", "b"]).view);
        assert_eq!(paths.take_stale(Time(5)).as_deref(), Some("x"));
        assert_eq!(paths.take_stale(Time(5)), None);
        paths.away(NodeId(1));
        let at = paths.next_deadline().unwrap();
        assert_eq!((at, paths.take_stale(Time(6))), (Time(5 + LOOKUP_AGAIN_MICROS), None));
        assert_eq!(paths.take_stale(at).as_deref(), Some("x"));
        assert_eq!(paths.next_deadline(), None);
    }
}
