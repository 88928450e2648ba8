//! The ordering and failover protocol as small models, explored in full.
//!
//! [`shard`] is one shard: leaves that take over from one another, members that are dropped, restart and come back as
//! learners, changes of view in doubt. [`tree`] is what stands above: a root, perhaps an inner position, and two leaves,
//! any of which is replaced. Both are written from the protocol's description and share no code with the cores: what is
//! checked is the protocol, not its implementation, which the simulator runs. `docs/MODEL.md` says what is modelled and
//! what is left out.
//!
//! **Relies on** stateright, which looks at every state within the bounds. **Promises** that a model with a rule broken on
//! purpose ([`Fault`]) gives a counterexample: each property can fail.

mod cases;
mod explore;
mod fault;
mod list;
pub mod shard;
pub mod tree;
mod words;

pub use cases::{Case, full, planted, quick};
pub use explore::{Explorable, Failure, Report, Until, explore};
pub use fault::Fault;
