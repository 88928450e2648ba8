//! One test beside each rule of a position: inputs in, the list of outputs out.

use flexlog_protocol::peer::Range;
use uuid::Uuid;

use super::*;

/// The position itself, one above, one below; a shard of its own.
const ME: Position = Position(3);
const ABOVE: Position = Position(1);
const BELOW: Position = Position(7);
const LEAF: Child = Child::Shard(ShardId(4));
const CHILD: Child = Child::Position(BELOW);

fn someone(position: Position, epoch: u32) -> Incarnation {
    Incarnation { position, epoch: Epoch(epoch), uuid: Uuid::from_u128(epoch.into()) }
}

fn me() -> Incarnation {
    someone(ME, 5)
}

fn parent() -> Incarnation {
    someone(ABOVE, 4)
}

fn child() -> Incarnation {
    someone(BELOW, 3)
}

fn color(owner: Position, wide: bool) -> Color {
    Color::new(owner, wide, 1).unwrap()
}

fn n(epoch: u32, counter: u32) -> SeqNum {
    SeqNum::new(Epoch(epoch), counter)
}

fn order(batch: u64, color: Color, count: u32) -> ToParent {
    ToParent::Order { batch, color, count }
}

fn grant(batch: u64, color: Color, first: SeqNum, count: u32) -> FromParent {
    FromParent::Grant { batch, color, first, count, ends: None }
}

fn sealed(by: Incarnation, colors: &[ColorEnd]) -> ToParent {
    sealed_again(by, 0, colors)
}

fn sealed_again(by: Incarnation, nth: u32, colors: &[ColorEnd]) -> ToParent {
    ToParent::Sealed { by, nth, colors: colors.to_vec() }
}

fn wide_end(color: Color, own: &[Range]) -> ColorEnd {
    let end = own.last().map_or(SeqNum::MIN, Range::end);
    ColorEnd { own: own.to_vec(), ..ColorEnd::narrow(color, end, false) }
}

fn down(message: FromParent) -> Output {
    Output::Child { to: BELOW, message: Between { from: me(), to: Some(child()), message } }
}

fn seal_down(by: Incarnation) -> Output {
    seal_down_again(by, 0)
}

fn seal_down_again(by: Incarnation, nth: u32) -> Output {
    let message = FromParent::Seal { by, nth };
    Output::Child { to: BELOW, message: Between { from: me(), to: None, message } }
}

fn to_leaf(message: FromParent) -> Output {
    Output::Shard { to: ShardId(4), message }
}

fn up(to: Incarnation, message: ToParent) -> Output {
    Output::Parent(Between { from: me(), to: Some(to), message })
}

struct Rig(Sequencer);

impl Rig {
    fn new() -> Self {
        let mut sequencer = Sequencer::new(me(), false, &[CHILD, LEAF]).with_limit(128);
        let mut out = Vec::new();
        sequencer.start(&mut out);
        let here = Output::Parent(Between { from: me(), to: None, message: ToParent::Here });
        assert_eq!(out, [seal_down(me()), to_leaf(FromParent::Seal { by: me(), nth: 0 }), here]);
        Self(sequencer)
    }

    /// All below have reported that there is nothing.
    fn serving() -> Self {
        let mut rig = Self::new();
        assert_eq!(rig.child(sealed(me(), &[])), []);
        assert_eq!(rig.leaf(sealed(me(), &[])), [Output::Serving]);
        rig
    }

    /// And the parent has sealed.
    fn attached() -> Self {
        let mut rig = Self::serving();
        rig.attach(parent());
        rig
    }

    fn attach(&mut self, parent: Incarnation) -> Vec<Output> {
        self.seal(parent, parent);
        self.child(sealed(parent, &[]));
        self.leaf(sealed(parent, &[]))
    }

    fn input(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.0.handle(input, &mut out);
        out
    }

    fn leaf(&mut self, message: ToParent) -> Vec<Output> {
        self.input(Input::Shard { from: ShardId(4), message })
    }

    fn child(&mut self, message: ToParent) -> Vec<Output> {
        self.child_as(child(), message)
    }

    fn child_as(&mut self, from: Incarnation, message: ToParent) -> Vec<Output> {
        let to = (message != ToParent::Here).then_some(me());
        self.input(Input::Child { from: BELOW, message: Between { from, to, message } })
    }

    fn parent_as(&mut self, from: Incarnation, message: FromParent) -> Vec<Output> {
        self.input(Input::Parent(Between { from, to: Some(me()), message }))
    }

    fn seal(&mut self, from: Incarnation, by: Incarnation) -> Vec<Output> {
        self.seal_again(from, by, 0)
    }

    fn seal_again(&mut self, from: Incarnation, by: Incarnation, nth: u32) -> Vec<Output> {
        self.input(Input::Parent(Between { from, to: None, message: FromParent::Seal { by, nth } }))
    }

    fn flush(&mut self) -> Vec<Output> {
        let mut out = Vec::new();
        self.0.flush(&mut out);
        out
    }

    fn ignores(&mut self, what: impl FnOnce(&mut Self) -> Vec<Output>) {
        let before = self.0.status().ignored;
        assert_eq!(what(self), []);
        assert_eq!(self.0.status().ignored, before + 1);
    }
}

#[test]
fn it_counts_when_all_below_have_reported_behind_what_they_know() {
    let own = color(ME, false);
    let mut rig = Rig::new();
    rig.ignores(|rig| rig.leaf(order(1, own, 1)));
    assert_eq!(rig.leaf(sealed(me(), &[ColorEnd::narrow(own, n(2, 9), false)])), []);
    assert_eq!((rig.leaf(order(1, own, 2)), rig.0.serves()), (vec![], false), "held");
    assert_eq!(rig.0.status().awaited, [CHILD]);
    let granted = FromParent::Grant { batch: 1, color: own, first: n(5, 0), count: 2, ends: Some(n(2, 9)) };
    assert_eq!(rig.child(sealed(me(), &[])), [Output::Serving, to_leaf(granted)]);
    rig.ignores(|rig| rig.child(sealed(me(), &[])));
}

#[test]
fn what_waits_together_goes_up_as_one_and_is_split_exactly() {
    let above = color(ABOVE, false);
    let mut rig = Rig::serving();
    assert_eq!(rig.leaf(order(8, above, 3)), []);
    assert_eq!(rig.flush(), [], "no parent yet");
    rig.attach(parent());
    rig.child(order(2, above, 2));
    assert_eq!(rig.flush(), [up(parent(), order(1, above, 5))]);
    assert_eq!(rig.flush(), []);
    rig.ignores(|rig| rig.parent_as(parent(), grant(1, above, n(4, 10), 4)));
    let split = [to_leaf(grant(8, above, n(4, 10), 3)), down(grant(2, above, n(4, 13), 2))];
    assert_eq!(rig.parent_as(parent(), grant(1, above, n(4, 10), 5)), split);
    rig.ignores(|rig| rig.parent_as(parent(), grant(1, above, n(4, 10), 5)));
}

#[test]
fn the_tails_of_own_colors_are_told_at_once_and_others_asked_for_together() {
    let (own, above) = (color(ME, false), color(ABOVE, false));
    let mut rig = Rig::attached();
    let ask = |round, colors: &[Color]| ToParent::Tails { round, colors: colors.to_vec() };
    let tails = |round, tails: &[(Color, SeqNum, Option<SeqNum>)]| FromParent::Tails { round, tails: tails.to_vec() };
    assert_eq!(rig.leaf(ask(3, &[own])), [to_leaf(tails(3, &[(own, n(5, 0), None)]))]);
    assert_eq!(rig.leaf(ask(4, &[own, above])), []);
    assert_eq!(rig.child(ask(9, &[above])), []);
    assert_eq!(rig.flush(), [up(parent(), ask(1, &[above]))]);
    let answers =
        [to_leaf(tails(4, &[(own, n(5, 0), None), (above, n(4, 7), None)])), down(tails(9, &[(above, n(4, 7), None)]))];
    assert_eq!(rig.parent_as(parent(), tails(1, &[(above, n(4, 7), None)])), answers);
}

#[test]
fn a_new_parent_is_told_what_all_below_know_and_asked_again() {
    let (own, above) = (color(ME, false), color(ABOVE, false));
    let mut rig = Rig::attached();
    rig.leaf(order(8, above, 3));
    rig.flush();
    rig.leaf(order(9, above, 1));
    rig.flush();
    let new = someone(ABOVE, 6);
    assert_eq!(rig.seal(new, new), [seal_down(new), to_leaf(FromParent::Seal { by: new, nth: 0 })]);
    rig.ignores(|rig| rig.seal(new, new));
    rig.ignores(|rig| rig.seal(parent(), parent()));
    rig.ignores(|rig| rig.parent_as(parent(), grant(1, above, n(4, 0), 3)));
    rig.leaf(order(10, above, 1));
    assert_eq!(rig.flush(), [], "nothing before the report");
    let (one, two) = (ColorEnd::narrow(above, n(4, 2), false), ColorEnd::narrow(above, n(4, 5), false));
    assert_eq!(rig.child(sealed(new, &[one])), []);
    let told = rig.leaf(sealed(new, &[two.clone(), ColorEnd::narrow(own, n(2, 2), false)]));
    let again = [up(new, sealed(new, &[two])), up(new, order(1, above, 3)), up(new, order(2, above, 1))];
    assert_eq!(told, again, "colors of its own are its own affair");
    assert_eq!(rig.flush(), [up(new, order(3, above, 1))]);
    assert_eq!(rig.parent_as(new, grant(1, above, n(6, 0), 3)), [to_leaf(grant(8, above, n(6, 0), 3))]);
}

#[test]
fn a_seal_from_further_up_is_handed_down_and_the_parent_stays() {
    let root = someone(Position(0), 8);
    let mut rig = Rig::serving();
    rig.ignores(|rig| rig.seal(parent(), root));
    rig.attach(parent());
    assert_eq!(rig.seal(parent(), root), [seal_down(root), to_leaf(FromParent::Seal { by: root, nth: 0 })]);
    rig.ignores(|rig| rig.seal(parent(), root));
    rig.leaf(order(8, color(ABOVE, false), 3));
    assert_eq!(rig.flush().len(), 1, "the parent has its report");
    rig.child(sealed(root, &[]));
    assert_eq!(rig.leaf(sealed(root, &[])), [up(parent(), sealed(root, &[]))]);
}

#[test]
fn a_new_child_is_sealed_anew_with_all_seals_in_their_order() {
    let root = someone(Position(0), 8);
    let mut rig = Rig::serving();
    rig.seal(parent(), parent());
    rig.seal(parent(), root);
    let seals = |nth| [seal_down_again(me(), nth), seal_down(parent()), seal_down(root)];
    let new = someone(BELOW, 9);
    assert_eq!(rig.child_as(new, ToParent::Here), seals(1));
    assert_eq!(rig.input(Input::ChildReplaced(BELOW)), seals(2));
    rig.ignores(|rig| rig.child_as(new, sealed_again(me(), 1, &[])));
    rig.ignores(|rig| rig.child_as(new, order(1, color(ME, false), 1)));
    assert_eq!(rig.child_as(new, sealed_again(me(), 2, &[])), []);
    rig.ignores(|rig| rig.child(order(1, color(ME, false), 1)));
    rig.ignores(|rig| rig.child(ToParent::Here));
}

#[test]
fn when_what_was_said_may_be_lost_the_parent_asks_again() {
    let above = color(ABOVE, false);
    let mut rig = Rig::attached();
    rig.leaf(order(8, above, 3));
    rig.flush();
    let here = Output::Parent(Between { from: me(), to: None, message: ToParent::Here });
    assert_eq!(rig.input(Input::ParentReplaced), [here]);
    rig.leaf(order(9, above, 1));
    assert_eq!(rig.flush(), [], "it would not count");
    rig.ignores(|rig| rig.seal(parent(), parent()));
    let again = |rig: &mut Rig, nth| {
        rig.seal_again(parent(), parent(), nth);
        rig.child(sealed(parent(), &[]));
        rig.leaf(sealed(parent(), &[]))
    };
    let told = |nth| [up(parent(), sealed_again(parent(), nth, &[])), up(parent(), order(1, above, 3))];
    assert_eq!(again(&mut rig, 1), told(1), "by the same one");
    rig.ignores(|rig| rig.seal_again(parent(), parent(), 1));
    assert_eq!(again(&mut rig, 2), told(2), "of a loss this one has not heard");
    assert_eq!(rig.child(ToParent::Here), [seal_down_again(me(), 1)], "as this one does");
    rig.ignores(|rig| rig.child(order(1, above, 1)));
    assert_eq!(rig.child(sealed_again(me(), 1, &[])), []);
}

#[test]
fn a_report_of_a_child_that_was_replaced_counts_for_nothing_of_the_new_ones() {
    let above = color(ABOVE, false);
    let new = someone(BELOW, 9);
    let mut rig = Rig::attached();
    rig.input(Input::ChildReplaced(BELOW));
    // It is not known yet by whom.
    assert_eq!(rig.child(sealed_again(me(), 1, &[])), []);
    rig.child(order(1, above, 2));
    rig.flush();
    rig.child_as(new, ToParent::Here);
    rig.child_as(new, sealed_again(me(), 2, &[]));
    assert_eq!(rig.parent_as(parent(), grant(1, above, n(4, 0), 2)), [], "the new one asked for nothing");

    let mut rig = Rig::attached();
    rig.child_as(new, ToParent::Here);
    rig.ignores(|rig| rig.child(sealed_again(me(), 1, &[])));
}

#[test]
fn a_parent_that_is_about_to_seal_again_has_one_answer() {
    let above = color(ABOVE, false);
    let mut rig = Rig::serving();
    rig.leaf(order(8, above, 3));
    rig.seal(parent(), parent());
    rig.child(sealed(parent(), &[]));
    assert_eq!(rig.input(Input::ParentReplaced).len(), 1);
    assert_eq!(rig.leaf(sealed(parent(), &[])), [], "it comes when the parent has heard");
    assert_eq!(rig.flush(), []);
    assert_eq!(rig.seal_again(parent(), parent(), 1), [up(parent(), sealed_again(parent(), 1, &[]))]);
    assert_eq!(rig.flush(), [up(parent(), order(1, above, 3))]);
}

#[test]
fn what_a_replaced_child_waits_for_is_nobodys() {
    let above = color(ABOVE, true);
    let mut rig = Rig::attached();
    rig.child(order(1, above, 2));
    rig.leaf(order(1, above, 3));
    rig.flush();
    rig.input(Input::ChildReplaced(BELOW));
    rig.child_as(someone(BELOW, 9), sealed(me(), &[]));
    assert_eq!(rig.parent_as(parent(), grant(1, above, n(4, 0), 5)), [to_leaf(grant(1, above, n(4, 2), 3))]);
    assert_eq!(rig.flush(), [up(parent(), ToParent::Settle(vec![(above, n(4, 2))]))], "lost, so it is not waited for");
    rig.leaf(ToParent::Settle(vec![(above, n(4, 5))]));
    assert_eq!(rig.flush(), [up(parent(), ToParent::Settle(vec![(above, n(4, 5))]))]);
}

#[test]
fn an_owner_tells_stable_to_those_that_follow() {
    let own = color(ME, true);
    let stable = |upto| FromParent::Stable(vec![(own, upto)]);
    let mut rig = Rig::serving();
    rig.leaf(order(1, own, 2));
    assert_eq!(rig.flush(), [to_leaf(stable(n(5, 0)))]);
    rig.child(order(1, own, 2));
    assert_eq!(rig.flush(), [down(stable(n(5, 0)))]);
    rig.child(ToParent::Settle(vec![(own, n(5, 4))]));
    assert_eq!(rig.flush(), [], "the leaf has not settled");
    rig.leaf(ToParent::Settle(vec![(own, n(5, 2))]));
    assert_eq!(rig.flush(), [down(stable(n(5, 4))), to_leaf(stable(n(5, 4)))]);
    rig.child(order(2, own, 4));
    rig.input(Input::ChildReplaced(BELOW));
    let (new, kept) = (someone(BELOW, 9), Range { first: n(5, 5), count: 1 });
    rig.child_as(new, sealed_again(me(), 1, &[wide_end(own, &[kept])]));
    let message = Between { from: me(), to: Some(new), message: stable(n(5, 5)) };
    let told = [Output::Child { to: BELOW, message }, to_leaf(stable(n(5, 5)))];
    assert_eq!(rig.flush(), told, "what it does not have is lost, what it has is waited for");
}

#[test]
fn a_color_that_is_heard_of_from_a_new_child_only_is_stable_up_to_its_tail() {
    let own = color(ME, true);
    let mut rig = Rig::serving();
    rig.input(Input::ChildReplaced(BELOW));
    rig.child(sealed_again(me(), 1, &[wide_end(own, &[])]));
    assert_eq!(rig.flush(), [down(FromParent::Stable(vec![(own, n(5, 0))]))]);
}

#[test]
fn stable_from_above_goes_to_those_that_follow_only() {
    let above = color(ABOVE, true);
    let stable = || FromParent::Stable(vec![(above, n(4, 6))]);
    let mut rig = Rig::attached();
    rig.leaf(ToParent::Tails { round: 1, colors: vec![above] });
    rig.flush();
    assert_eq!((rig.parent_as(parent(), stable()), rig.flush()), (vec![], vec![to_leaf(stable())]));
    assert_eq!((rig.parent_as(parent(), stable()), rig.flush()), (vec![], vec![]), "once");
}

#[test]
fn stable_that_nobody_follows_yet_is_kept_for_whoever_will() {
    let above = color(ABOVE, true);
    let mut rig = Rig::serving();
    rig.seal(parent(), parent());
    rig.child(sealed(parent(), &[]));
    // A member asked its leaf meanwhile: the parent knows of it before this position does.
    assert_eq!(rig.leaf(sealed(parent(), &[wide_end(above, &[])])).len(), 1);
    let stable = || FromParent::Stable(vec![(above, n(4, 6))]);
    assert_eq!((rig.parent_as(parent(), stable()), rig.flush()), (vec![], vec![]));
    rig.leaf(ToParent::Tails { round: 1, colors: vec![above] });
    assert!(rig.flush().contains(&to_leaf(stable())));
}

#[test]
fn a_full_epoch_is_told_once_and_shortly_before_its_end() {
    let own = color(ME, false);
    let mut rig = Rig::serving();
    assert_eq!(rig.leaf(order(1, own, 126)).len(), 1);
    assert_eq!(rig.leaf(order(2, own, 1)), [to_leaf(grant(2, own, n(5, 126), 1)), Output::EpochFull]);
    assert_eq!(rig.leaf(order(3, own, 1)), [to_leaf(grant(3, own, n(5, 127), 1))]);
    assert_eq!(rig.leaf(order(4, own, 1)), []);
}

#[test]
fn the_root_gives_no_numbers_of_a_color_of_nobody() {
    let foreign = color(Position(6), false);
    let mut rig = Rig(Sequencer::new(me(), true, &[LEAF]));
    rig.leaf(sealed(me(), &[]));
    rig.ignores(|rig| rig.leaf(order(1, foreign, 1)));
    rig.ignores(|rig| rig.seal(parent(), parent()));
    let tails = FromParent::Tails { round: 1, tails: vec![(foreign, SeqNum::MIN, None)] };
    assert_eq!(rig.leaf(ToParent::Tails { round: 1, colors: vec![foreign] }), [to_leaf(tails)]);
}

#[test]
fn a_neighbour_that_was_replaced_before_this_one_began_changes_nothing() {
    let mut sequencer = Sequencer::new(me(), false, &[CHILD]).with_neighbours([(ABOVE, Epoch(4)), (BELOW, Epoch(3))]);
    let mut out = Vec::new();
    sequencer.start(&mut out);
    out.clear();
    let (old_parent, old_child) = (someone(ABOVE, 3), someone(BELOW, 2));
    let seal = FromParent::Seal { by: old_parent, nth: 0 };
    sequencer.handle(Input::Parent(Between { from: old_parent, to: None, message: seal }), &mut out);
    let report = Between { from: old_child, to: Some(me()), message: sealed(me(), &[]) };
    sequencer.handle(Input::Child { from: BELOW, message: report.clone() }, &mut out);
    let here = Between { from: old_child, to: None, message: ToParent::Here };
    sequencer.handle(Input::Child { from: BELOW, message: here }, &mut out);
    assert_eq!((out.as_slice(), sequencer.serves(), sequencer.status().ignored), (&[][..], false, 3));
    sequencer.handle(Input::Child { from: BELOW, message: Between { from: child(), ..report } }, &mut out);
    assert!(sequencer.serves());
}
