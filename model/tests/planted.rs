//! scratch
use flexlog_model::*;
#[test]
fn shard() {
    use Fault::*;
    for (f, tokens, changes, restarts, asks) in [
       (NumberWithoutAll, 1,0,0,0), (CommitWithoutAll,1,0,0,0), (AckWithoutRecord,1,1,0,0), (ReportBeforeFence,1,0,1,0),
       (FenceForgotten,1,2,1,0), (ShortestLog,1,0,0,0), (AssignBeforeNewView,1,1,0,0), (LearnerNotTruncated,1,2,0,0), (LearnerAddedEarly,1,1,0,0), (DoubtIgnored,1,1,0,0), (DoubtTakenForNo,1,1,0,0), (TailByOneMember,1,1,0,1), (StaleViewAccepted,1,1,0,0), (EpochReused,2,0,0,0)] {
        let bounds = shard::Bounds { members: 2, replicas: 3, min_view: 1, leaves: 2, tokens, changes, restarts, asks };
        let r = explore(&shard::Shard { bounds, fault: Some(f) }, 2, Until::Counterexample);
        println!("{f:?}: {} states {:?}", r.states, r.time);
        for fail in &r.failures { println!("   {} after {} steps", fail.property, fail.path.len() - 1); }
    }
}
