//! A machine with one replica's medium on it: opening its store step by step, and the member that runs over it.
//!
//! The order of the steps is that of the embedded cluster, with the metadata between them; a crash may come after each, and
//! inside each where the medium is told to fail.

use std::fmt;
use std::sync::Arc;

use flexlog_protocol::media::{Background, FenceId, Recovered};
use flexlog_protocol::{ClusterId, Incarnation, ReplicaId, ShardId, StoreId};
use flexlog_replica::{Output, Replica};
use flexlog_storage_pm::device::{Fences, SimDevice, SimMedia};
use flexlog_storage_pm::ssd::SimFolder;
use flexlog_storage_pm::{Advanced, Closed, Intended, Mark, Options, Owner, Store};
use flexlog_tree_config::identity::{self, Opening};
use uuid::Uuid;

use crate::metadata::Metadata;
use crate::rot::Scrub;

const CLUSTER: ClusterId = ClusterId(Uuid::from_u128(0x5f10));
/// Events of a medium after which nothing is broken any more.
const NEVER: u64 = 1 << 60;

pub(crate) fn replica_id(member: usize) -> ReplicaId {
    ReplicaId(member as u32 + 1)
}

/// Which replica this is.
pub(crate) fn member_of(id: ReplicaId) -> usize {
    id.0 as usize - 1
}

/// Work of a store that another thread has not done yet.
pub(crate) struct Job(pub(crate) Background);

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

/// A member that runs.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) replica: Replica,
    pub(crate) store: Store<SimDevice>,
    /// Writes that the store was given, and those that a fence was started for.
    pub(crate) written: u64,
    pub(crate) covered: u64,
    /// The fence under way, and how many writes it covers.
    pub(crate) fence: Option<(FenceId, u64)>,
    pub(crate) checkpointing: bool,
    /// Work of the store under way elsewhere, and whether the store may have more since it was asked last.
    pub(crate) job: Option<Job>,
    pub(crate) may_have_work: bool,
    pub(crate) failed: Option<String>,
    /// The newest incarnation that it was asked to seal to, and whether it has.
    pub(crate) sealing: Option<Incarnation>,
    pub(crate) follows: Option<Incarnation>,
    /// It was told to learn, and has a copy up to here: it serves nobody before a view that it is in has committed behind
    /// that.
    pub(crate) outside: Option<u64>,
    pub(crate) scrub: Scrub,
}

/// How far the opening of a store is.
#[derive(Debug)]
pub(crate) enum Stage {
    Found(Closed<SimDevice>),
    /// The metadata knows of the end of the last opening.
    Told(Closed<SimDevice>),
    Intended(Intended<SimDevice>),
    Begun(Intended<SimDevice>),
    Advanced(Advanced<SimDevice>),
    Counted(Advanced<SimDevice>),
}

#[derive(Debug)]
pub(crate) enum Process {
    Closed,
    Opening(Stage),
    Up(Box<Member>),
}

/// Why a step of an opening failed.
#[derive(Debug)]
pub(crate) enum OpenFailure {
    /// The store is not the replica's.
    Refused(String),
    Store(String),
}

/// What a step of an opening led to.
pub(crate) enum Opened {
    NotYet,
    /// The store is open.
    Store(Box<(Store<SimDevice>, Recovered)>),
}

/// The area's medium and the folder of SSD files.
pub(crate) type Media = (SimMedia, Option<SimFolder>);

/// See the module.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) member: usize,
    shard: ShardId,
    pub(crate) media: SimMedia,
    /// Where older records move to, if anywhere.
    pub(crate) ssd: Option<SimFolder>,
    pub(crate) process: Process,
    /// The medium will fail, and the power with it.
    pub(crate) armed: bool,
    /// It is not started before this event.
    pub(crate) down_until: u64,
    /// It stands still until this event.
    pub(crate) still_until: u64,
    /// How often the store was opened.
    pub(crate) opened: u64,
    /// A copy from an earlier opening: how often the store was opened then.
    pub(crate) image: Option<(u64, Media)>,
    /// The right media, while an older image is in their place.
    pub(crate) aside: Option<Media>,
    fences: Fences,
    options: Options,
}

impl Machine {
    pub(crate) fn new(member: usize, shard: ShardId, fences: Fences, options: Options, ssd: Option<SimFolder>) -> Self {
        let media = SimMedia::new(options.limit_bytes);
        media.set_fences(fences);
        let process = Process::Closed;
        Self {
            member,
            shard,
            media,
            ssd,
            process,
            armed: false,
            down_until: 0,
            still_until: 0,
            opened: 0,
            image: None,
            aside: None,
            fences,
            options,
        }
    }

    pub(crate) fn up(&self) -> Option<&Member> {
        if let Process::Up(member) = &self.process { Some(member) } else { None }
    }

    pub(crate) fn up_mut(&mut self) -> Option<&mut Member> {
        if let Process::Up(member) = &mut self.process { Some(member) } else { None }
    }

    /// The power is gone: any part of what was not fenced is lost.
    pub(crate) fn power_cut(&mut self, seed: u64) {
        self.process = Process::Closed;
        self.ssd = self.ssd.as_ref().map(|ssd| ssd.crash(seed));
        self.replace(self.media.crash(seed));
    }

    /// The power is gone: of the lines that were not fenced those stay whose bit is set.
    pub(crate) fn power_cut_but_for(&mut self, kept: u64) {
        self.process = Process::Closed;
        self.ssd = self.ssd.as_ref().map(SimFolder::copy);
        self.replace(self.media.crash_with(kept));
    }

    /// The process is killed, the machine goes on: what the store gave to its medium is there. Returns how many writes a
    /// fence covers that was under way.
    pub(crate) fn kill(&mut self) -> Option<u64> {
        let covered = self.up().filter(|member| member.failed.is_none()).and_then(|member| member.fence);
        self.process = Process::Closed;
        if self.armed {
            self.ssd = self.ssd.as_ref().map(SimFolder::copy);
            self.replace(self.media.copy());
        } else {
            // A fence that was under way goes on without the one who asked for it; what it does not cover is where it was.
            self.media.finish_fence();
        }
        covered.map(|(_, upto)| upto)
    }

    fn replace(&mut self, media: SimMedia) {
        media.set_fences(self.fences);
        self.media = media;
        self.armed = false;
    }

    pub(crate) fn disarm(&mut self) {
        self.media.fail_fence(NEVER);
        self.media.fail_write(NEVER);
        if let Some(ssd) = &self.ssd {
            ssd.fail_append(0);
            ssd.fail_sync(0);
        }
        self.armed = false;
    }

    /// Puts an image from an earlier opening in the place of the medium, if there is one. The process must not run.
    pub(crate) fn swap_in_image(&mut self) {
        if let (Some((opened, image)), None) = (&self.image, &self.aside)
            && *opened < self.opened
        {
            let (media, ssd) = (image.0.copy(), image.1.as_ref().map(SimFolder::copy));
            media.set_fences(self.fences);
            let right = std::mem::replace(&mut self.media, media);
            self.aside = Some((right, std::mem::replace(&mut self.ssd, ssd)));
        }
    }

    /// Puts the right medium back. Returns whether it was away.
    pub(crate) fn swap_out_image(&mut self) -> bool {
        let Some((media, ssd)) = self.aside.take() else { return false };
        self.process = Process::Closed;
        self.media = media;
        self.ssd = ssd;
        true
    }

    /// Takes the next step of opening the store. `believing`: without a look at its identity.
    pub(crate) fn open_step(
        &mut self,
        metadata: &mut Metadata,
        nonce: Uuid,
        believing: bool,
    ) -> Result<Opened, OpenFailure> {
        let member = self.member;
        let store = |error: flexlog_storage_pm::OpenError| OpenFailure::Store(error.to_string());
        let stage = match std::mem::replace(&mut self.process, Process::Closed) {
            Process::Up(up) => {
                self.process = Process::Up(up);
                return Ok(Opened::NotYet);
            }
            Process::Closed => {
                let owner = Owner { cluster: CLUSTER, replica: replica_id(member) };
                let what = format!("store {member}");
                let device = self.media.device();
                let closed = Closed::open(device, what, owner, StoreId(nonce), self.options).map_err(store)?;
                Stage::Found(match &self.ssd {
                    Some(ssd) => closed.with_ssd(Arc::new(ssd.clone())),
                    None => closed,
                })
            }
            Process::Opening(Stage::Found(closed)) => {
                if let Mark::Opened { n, nonce: Some(nonce) } = closed.mark()
                    && let Some(n) = n.checked_sub(1)
                    && !believing
                {
                    let seen = Opening { store: closed.identity().id, n, nonce };
                    metadata.step(member, |replica, known| identity::finish(replica, known, seen))?;
                }
                Stage::Told(closed)
            }
            Process::Opening(Stage::Told(closed)) => Stage::Intended(closed.intend(nonce).map_err(store)?),
            Process::Opening(Stage::Intended(intended)) => {
                let identity = intended.identity();
                let seen = Opening { store: identity.id, n: identity.opened, nonce: intended.nonce() };
                if !believing {
                    metadata.step(member, |replica, known| identity::begin(replica, known, seen))?;
                }
                Stage::Begun(intended)
            }
            Process::Opening(Stage::Begun(intended)) => Stage::Advanced(intended.advance().map_err(store)?),
            Process::Opening(Stage::Advanced(advanced)) => {
                let identity = advanced.identity();
                let n = identity.opened.saturating_sub(1);
                let seen = Opening { store: identity.id, n, nonce: advanced.nonce() };
                if !believing {
                    metadata.step(member, |replica, known| identity::finish(replica, known, seen))?;
                }
                Stage::Counted(advanced)
            }
            Process::Opening(Stage::Counted(advanced)) => {
                if self.aside.is_some() && !believing {
                    return Err(OpenFailure::Store("an older image was taken for the replica's store".to_owned()));
                }
                let opened = advanced.identity().opened;
                let (store, recovered) = advanced.finish().map_err(store)?;
                self.opened = opened;
                if self.image.as_ref().is_none_or(|(n, _)| opened > n + 2) {
                    self.image = Some((opened, (self.media.copy(), self.ssd.as_ref().map(SimFolder::copy))));
                }
                return Ok(Opened::Store(Box::new((store, recovered))));
            }
        };
        self.process = Process::Opening(stage);
        Ok(Opened::NotYet)
    }

    /// Starts the member over its opened store.
    pub(crate) fn start(&mut self, mut store: Store<SimDevice>, recovered: Recovered) -> Result<Vec<Output>, String> {
        use flexlog_protocol::media::LogStore;
        let sealing = recovered.fence;
        let (replica, outputs) =
            Replica::restore(replica_id(self.member), self.shard, recovered).map_err(|error| error.to_string())?;
        for output in &outputs {
            match output {
                Output::Trim { color, upto } => store.trim(*color, *upto),
                Output::DropStaged(tokens) => store.drop_staged(tokens),
                other => return Err(format!("a replica wants more than its store when it starts: {other:?}")),
            }
        }
        self.process = Process::Up(Box::new(Member {
            replica: replica.opened(self.opened),
            store,
            written: 0,
            covered: 0,
            fence: None,
            checkpointing: false,
            job: None,
            may_have_work: true,
            failed: None,
            sealing,
            follows: None,
            outside: None,
            scrub: Scrub::default(),
        }));
        Ok(outputs)
    }
}
