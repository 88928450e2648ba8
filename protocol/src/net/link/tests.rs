//! A stream over a network that fails: each message once and in order, or the sender is told.

use bytes::BufMut as _;
use proptest::prelude::*;

use super::*;

/// What a test sends: which life of the sender, which stream of that life, which place in it.
type Mark = (u32, u32, u32);

fn put(mark: Mark, len: usize, out: &mut BytesMut) {
    out.put_u32_le(len as u32);
    out.put_u32_le(mark.0);
    out.put_u32_le(mark.1);
    out.put_u32_le(mark.2);
    out.put_bytes(mark.2 as u8, len);
}

fn marks(mut bytes: &[u8]) -> Vec<Mark> {
    let mut marks = Vec::new();
    while !bytes.is_empty() {
        let word = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap());
        let (len, mark) = (word(0) as usize, (word(1), word(2), word(3)));
        assert!(bytes[16..16 + len].iter().all(|byte| *byte == mark.2 as u8), "a message is as it was sent");
        marks.push(mark);
        bytes = &bytes[16 + len..];
    }
    marks
}

/// Both ends, and at most one connection between them.
struct World {
    uuids: u128,
    sender: Uuid,
    outgoing: Outgoing,
    /// The next message.
    mark: Mark,
    incoming: Incoming,
    /// What the present life of the receiver got.
    got: Vec<Mark>,
    connected: bool,
    via: Option<Via>,
    there: VecDeque<LinkFrame>,
    back: VecDeque<LinkFrame>,
}

impl World {
    fn new() -> Self {
        Self {
            uuids: 3,
            sender: Uuid::from_u128(1),
            outgoing: Outgoing::new(Uuid::from_u128(2)),
            mark: (0, 0, 0),
            incoming: Incoming::new(Uuid::from_u128(3)),
            got: Vec::new(),
            connected: false,
            via: None,
            there: VecDeque::new(),
            back: VecDeque::new(),
        }
    }

    fn uuid(&mut self) -> Uuid {
        self.uuids += 1;
        Uuid::from_u128(self.uuids)
    }

    /// The sender is told that its stream is lost.
    fn told(&mut self) {
        let stream = self.uuid();
        self.outgoing.restart(stream);
        self.mark = (self.mark.0, self.mark.1 + 1, 0);
    }

    fn send(&mut self, len: usize) {
        let mark = self.mark;
        self.mark.2 += 1;
        if self.outgoing.send(|out| put(mark, len, out)).is_err() {
            self.cut();
            self.told();
        }
    }

    fn cut(&mut self) {
        self.connected = false;
        self.there.clear();
        self.back.clear();
        self.outgoing.disconnected();
        // The receiver may learn of it much later, or never.
    }

    fn connect(&mut self) {
        self.cut();
        self.connected = true;
        self.there.push_back(self.outgoing.open(self.sender, "replica 1"));
    }

    fn write(&mut self) {
        let mut frames = Vec::new();
        self.outgoing.take(&mut frames);
        assert!(self.connected || frames.is_empty());
        self.there.extend(frames);
    }

    fn receive(&mut self) {
        match self.there.pop_front() {
            None => {}
            Some(LinkFrame::Open { process, stream, to, first }) => {
                let (via, welcome, _) = self.incoming.open(process, stream, &to, first).unwrap();
                self.via = Some(via);
                self.back.push_back(welcome);
            }
            Some(LinkFrame::Data(parcel)) => match self.incoming.data(self.via.unwrap(), parcel) {
                Ok(bytes) => self.got.extend(bytes.map(|bytes| marks(&bytes)).unwrap_or_default()),
                // Forgotten under way.
                Err(LinkError::Superseded) => self.cut(),
                Err(error) => panic!("{error}"),
            },
            Some(frame) => panic!("{frame:?}"),
        }
    }

    fn hear(&mut self) {
        match self.back.pop_front() {
            None => {}
            Some(LinkFrame::Welcome { process, next }) => {
                let welcomed = self.outgoing.welcomed(process, next);
                if welcomed == Welcomed::Restarted {
                    self.told();
                    let open = self.outgoing.open(self.sender, "replica 1");
                    self.there.push_back(open);
                }
            }
            Some(LinkFrame::Ack { upto }) => {
                self.outgoing.acked(upto).unwrap();
            }
            Some(frame) => panic!("{frame:?}"),
        }
    }

    fn ack(&mut self) {
        if let Some(via) = self.via.filter(|_| self.connected)
            && let Some(ack) = self.incoming.ack(via)
        {
            self.back.push_back(ack);
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Send(len) => self.send(*len),
            Step::Connect => self.connect(),
            Step::Cut => self.cut(),
            Step::Write => self.write(),
            Step::Receive => self.receive(),
            Step::Hear => self.hear(),
            Step::Ack => self.ack(),
            Step::Forget => {
                if let Some(via) = self.via {
                    self.incoming.forget(via);
                    self.cut();
                }
            }
            Step::RestartReceiver => {
                self.cut();
                self.incoming = Incoming::new(self.uuid());
                self.got.clear();
                self.via = None;
            }
            Step::RestartSender => {
                self.cut();
                self.sender = self.uuid();
                self.outgoing = Outgoing::new(self.uuid());
                self.mark = (self.mark.0 + 1, 0, 0);
            }
        }
    }

    /// Within a life of the receiver: every stream from its first message on, without a gap, none twice.
    fn check(&self) {
        let mut last: Option<Mark> = None;
        for mark in &self.got {
            let goes_on = match last {
                Some(last) if (last.0, last.1) == (mark.0, mark.1) => mark.2 == last.2 + 1,
                Some(last) => (last.0, last.1) < (mark.0, mark.1) && mark.2 == 0,
                None => mark.2 == 0,
            };
            assert!(goes_on, "{mark:?} came after {last:?}");
            last = Some(*mark);
        }
    }

    /// The network is well again: everything of the last stream arrives.
    fn settle(&mut self) {
        self.connect();
        while !self.there.is_empty() || !self.back.is_empty() || self.outgoing.unacked_bytes() > 0 {
            self.write();
            while !self.there.is_empty() {
                self.receive();
            }
            self.ack();
            while !self.back.is_empty() {
                self.hear();
            }
            if !self.connected {
                self.connect();
            }
        }
        self.check();
        let (life, stream, sent) = self.mark;
        let got = self.got.iter().filter(|mark| (mark.0, mark.1) == (life, stream)).count();
        assert_eq!(got, sent as usize, "the sender was told of no loss");
    }
}

#[derive(Debug, Clone)]
enum Step {
    Send(usize),
    Connect,
    Cut,
    Write,
    Receive,
    Hear,
    Ack,
    Forget,
    RestartReceiver,
    RestartSender,
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![20 => 0_usize..200, 1 => PARCEL_BYTES - 40..PARCEL_BYTES + 40, 1 => 500_000_usize..900_000];
    prop_oneof![
        20 => len.prop_map(Step::Send),
        4 => Just(Step::Connect),
        3 => Just(Step::Cut),
        16 => Just(Step::Write),
        24 => Just(Step::Receive),
        12 => Just(Step::Hear),
        8 => Just(Step::Ack),
        1 => Just(Step::Forget),
        1 => Just(Step::RestartReceiver),
        1 => Just(Step::RestartSender),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn every_message_arrives_once_and_in_order_or_the_sender_is_told(
        steps in proptest::collection::vec(step(), 1..250),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
            world.check();
        }
        world.settle();
    }
}

/// A connection with a welcome, its first bytes under way.
fn connected() -> World {
    let mut world = World::new();
    world.connect();
    world.receive();
    world.hear();
    world
}

#[test]
fn without_a_restart_nobody_is_told_of_a_loss() {
    let mut world = connected();
    for i in 0..100 {
        world.send(10 * i);
        world.write();
        if i % 3 == 0 {
            world.receive();
        }
        if i % 10 == 9 {
            world.connect();
            world.receive();
            world.hear();
        }
    }
    world.settle();
    assert_eq!((world.mark, world.got.len()), ((0, 0, 100), 100));
}

#[test]
fn what_waits_together_goes_in_one_parcel() {
    let mut world = connected();
    for _ in 0..50 {
        world.send(20);
    }
    world.write();
    assert_eq!(world.there.len(), 1);
    world.receive();
    assert_eq!(world.got.len(), 50);
    world.write();
    assert!(world.there.is_empty(), "nothing goes twice over one connection");
}

#[test]
fn a_large_message_is_cut_and_put_together() {
    let mut world = connected();
    world.send(5);
    world.send(3_000_000);
    world.send(7);
    while world.outgoing.written < world.outgoing.parcels.len() || !world.outgoing.waiting.is_empty() {
        let before = world.there.len();
        world.write();
        let taken = world.there.range(before..).map(|frame| match frame {
            LinkFrame::Data(parcel) => parcel.content.len(),
            frame => panic!("{frame:?}"),
        });
        assert!(taken.sum::<usize>() <= WRITE_BYTES);
    }
    assert!(world.there.len() > 10);
    while !world.there.is_empty() {
        world.receive();
    }
    assert_eq!(world.got, [(0, 0, 0), (0, 0, 1), (0, 0, 2)]);
    assert!(world.incoming.ack_is_due(world.via.unwrap()));
    world.ack();
    assert!(!world.incoming.ack_is_due(world.via.unwrap()));
    world.hear();
    assert_eq!(world.outgoing.unacked_bytes(), 0);
}

#[test]
fn another_process_at_the_other_end_is_a_loss_even_if_nothing_waits() {
    let mut world = connected();
    world.send(1);
    world.settle();
    world.step(&Step::RestartReceiver);
    world.connect();
    world.receive();
    let Some(LinkFrame::Welcome { process, next }) = world.back.pop_front() else { panic!() };
    assert_eq!(world.outgoing.welcomed(process, next), Welcomed::Restarted);
}

#[test]
fn a_stream_that_was_begun_and_forgotten_does_not_come_twice() {
    // The acknowledgement is lost, so the sender does not know that anything arrived.
    let mut world = connected();
    world.send(1);
    world.write();
    world.receive();
    world.step(&Step::Forget);
    world.connect();
    world.receive();
    world.hear();
    assert_eq!(world.mark, (0, 1, 0), "the sender is told");
    world.settle();
    assert_eq!(world.got, [(0, 0, 0)]);
}

#[test]
fn too_much_that_waits_is_told_and_dropped() {
    let mut outgoing = Outgoing::new(Uuid::from_u128(1));
    let mib = |out: &mut BytesMut| out.put_bytes(7, 1 << 20);
    for _ in 0..64 {
        outgoing.send(mib).unwrap();
    }
    // Bulk is counted for itself.
    outgoing.send(|out| out.put_bytes(7, BULK_BYTES + 1)).unwrap();
    assert_eq!(outgoing.unacked_bytes(), MAX_UNACKED_BYTES + BULK_BYTES + 1);
    let bytes = MAX_UNACKED_BYTES + BULK_BYTES + 2;
    assert_eq!(outgoing.send(|out| out.put_u8(1)), Err(Overflowed { bytes }));
    assert_eq!(outgoing.unacked_bytes(), 0);
    assert!(outgoing.send(mib).is_err(), "nothing is taken before the caller has begun another stream");
    outgoing.restart(Uuid::from_u128(2));
    outgoing.send(mib).unwrap();
}

#[test]
fn a_gap_and_an_acknowledgement_of_what_was_not_sent_are_errors() {
    let mut world = connected();
    let gap = Parcel { seq: 1, more: false, content: Bytes::from_static(b"x") };
    assert_eq!(world.incoming.data(world.via.unwrap(), gap), Err(LinkError::Gap { want: 0, got: 1 }));
    world.send(1);
    assert_eq!(world.outgoing.acked(1), Err(LinkError::NeverSent { upto: 1, sent: 0 }));
}

#[test]
fn a_newer_connection_supersedes_the_older_one() {
    let mut incoming = Incoming::new(Uuid::from_u128(9));
    let (sender, stream) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let parcel = |seq| Parcel { seq, more: false, content: Bytes::from_static(b"x") };
    let (old, _, superseded) = incoming.open(sender, stream, "position 0", None).unwrap();
    assert_eq!(superseded, None);
    // Another one who is addressed here has a stream of its own.
    let (other, _, superseded) = incoming.open(sender, Uuid::from_u128(3), "position 1", None).unwrap();
    assert_eq!(superseded, None);
    incoming.data(old, parcel(0)).unwrap();
    let (new, welcome, superseded) = incoming.open(sender, stream, "position 0", Some(0)).unwrap();
    assert_eq!(welcome, LinkFrame::Welcome { process: Uuid::from_u128(9), next: Some(1) });
    assert_eq!(superseded, Some(old));
    assert_eq!(incoming.data(old, parcel(1)), Err(LinkError::Superseded));
    assert_eq!(incoming.data(new, parcel(0)), Ok(None), "once is enough");
    assert_eq!(incoming.data(new, parcel(1)), Ok(Some(Bytes::from_static(b"x"))));
    assert_eq!(incoming.data(other, parcel(0)), Ok(Some(Bytes::from_static(b"x"))));
}

#[test]
fn streams_of_processes_that_are_gone_make_room() {
    let mut incoming = Incoming::new(Uuid::from_u128(9));
    let mut open = |i: u128| incoming.open(Uuid::from_u128(i), Uuid::from_u128(i), "replica 1", None).map(|it| it.0);
    let vias: Vec<_> = (0..MAX_STREAMS as u128).map(|i| open(i).unwrap()).collect();
    assert_eq!(open(u128::MAX), Err(LinkError::TooManyStreams));
    incoming.closed(vias[7]);
    incoming.open(Uuid::from_u128(u128::MAX), Uuid::nil(), "replica 1", None).unwrap();
    let seven = Uuid::from_u128(7);
    incoming.closed(vias[8]);
    let (_, welcome, _) = incoming.open(seven, seven, "replica 1", Some(1)).unwrap();
    assert_eq!(welcome, LinkFrame::Welcome { process: Uuid::from_u128(9), next: None });
}
