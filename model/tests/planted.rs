//! scratch
use flexlog_model::*;
#[test]
fn tree_() {
    use Fault::*;
    for (f, b) in [
       (OldGrantCounts, [1,1,1,1,2,1,1,1,0]), (OldGrantCounts, [0,1,1,1,2,1,1,1,0]),
       (HoleOverRecord, [0,0,2,0,1,1,1,1,0]), (TwoEnds,[0,1,2,1,2,1,1,1,0]), (OwnerEpochReused,[0,1,1,1,2,1,1,1,0]),
       (OwnerStartsEarly,[0,1,1,1,2,1,1,1,0]), (SealNotPassed,[1,1,2,0,2,1,1,1,0]),(InnerAnswersEarly,[1,1,1,1,2,2,1,1,0]), (InnerAnswersEarly,[1,1,2,0,2,1,1,1,0]),
       (GrantForLater,[0,1,2,1,1,1,1,1,0]), (OldParentTaken,[0,1,1,1,2,1,2,1,0]) , (OldChildTaken,[0,1,1,1,2,1,2,1,0]) , (OldParentTaken,[1,1,1,1,2,2,1,1,0]) , (OldChildTaken,[1,1,1,1,2,2,1,1,0]) ] {
        let bounds = tree::Bounds { inner: b[0] > 0, wide: b[1] > 0, tokens: [b[2], b[3]], tenures: [b[4], b[5], b[6], b[7]], asks: b[8] };
        let r = explore(&tree::Tree { bounds, fault: Some(f) }, 1, Until::Counterexample);
        println!("{f:?}: {b:?} {} states {:?}", r.states, r.time);
        for fail in &r.failures { println!("   {} after {} steps", fail.property, fail.path.len() - 1); }
    }
}
