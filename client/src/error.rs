//! What can go wrong, one type per operation. Each says what is the matter, where, and what to do next.

use std::time::Duration;

use flexlog_protocol::api::{AppendRefusal, Failure};
use flexlog_protocol::{RecordError, SeqNum};

use crate::core::CallFailure;

/// The node did not answer in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{address} did not answer within {} ms{}", after.as_millis(), because(trouble.as_deref()))]
pub struct NoAnswer {
    /// The node.
    pub address: String,
    /// The time it had.
    pub after: Duration,
    /// What is known of the reason: why there is no connection, or what the node is not ready for.
    pub trouble: Option<String>,
}

fn because(trouble: Option<&str>) -> String {
    trouble.map_or_else(|| ": it may be overloaded, try again".to_owned(), |trouble| format!(": {trouble}"))
}

/// Why an append has no number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The records break a bound. Nothing was sent.
    #[error("cannot append to color '{color}': {source}")]
    Invalid {
        /// The color's name.
        color: String,
        /// Which bound.
        source: RecordError,
    },
    /// Every replica's storage is full. Nothing was appended.
    #[error(
        "color '{color}' at {address} takes no appends: its storage is full. Trim colors, or give the replicas larger \
         areas, then append again"
    )]
    Full {
        /// The color's name.
        color: String,
        /// The node.
        address: String,
    },
    /// The replicas refused it. Nothing was appended.
    #[error("color '{color}' at {address} did not take the append: {why}. Nothing was appended")]
    Refused {
        /// The color's name.
        color: String,
        /// The node.
        address: String,
        /// Why.
        why: AppendRefusal,
    },
    /// No session could be opened. Nothing was appended.
    #[error("cannot append to color '{color}' at {address}: {why}. Nothing was appended")]
    NoSession {
        /// The color's name.
        color: String,
        /// The node.
        address: String,
        /// Why.
        why: Failure,
    },
    /// The deadline passed before it was sent. Nothing was appended.
    #[error("the append to color '{color}' was not sent: {source}. Nothing was appended, it is safe to append again")]
    NotSent {
        /// The color's name.
        color: String,
        /// The node, the time, and what was in the way.
        source: NoAnswer,
    },
    /// It was sent, and it is not known whether it was appended.
    #[error(
        "it is not known whether the append to color '{color}' took place, it may even take place later: {source}. \
         Read the end of the color before you append it again"
    )]
    OutcomeUnknown {
        /// The color's name.
        color: String,
        /// The node, the time, and what was in the way.
        source: NoAnswer,
    },
    /// It was sent, then its session expired, and it is not known whether it was appended.
    #[error(
        "it is not known whether the append to color '{color}' at {address} took place: its session expired before \
         anyone said so. Read the end of the color before you append it again"
    )]
    SessionExpired {
        /// The color's name.
        color: String,
        /// The node.
        address: String,
    },
    /// It was sent more than once, and refused at last.
    #[error(
        "it is not known whether the append to color '{color}' at {address} took place: it was sent again after a lost \
         connection, and refused then: {why}. Read the end of the color before you append it again"
    )]
    RefusedLater {
        /// The color's name.
        color: String,
        /// The node.
        address: String,
        /// Why.
        why: AppendRefusal,
    },
    /// The runtime that the client ran on is gone; it is not known whether it was appended.
    #[error("the client for {address} has stopped, because the tokio runtime that it was made on has: make a new one")]
    Stopped {
        /// The node.
        address: String,
    },
}

impl AppendError {
    /// Whether the records may be in the log, or may still get there.
    ///
    /// If not, nothing was appended, and appending them again cannot double them.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Self::Invalid { .. }
            | Self::Full { .. }
            | Self::Refused { .. }
            | Self::NoSession { .. }
            | Self::NotSent { .. } => false,
            Self::OutcomeUnknown { .. }
            | Self::SessionExpired { .. }
            | Self::RefusedLater { .. }
            | Self::Stopped { .. } => true,
        }
    }
}

/// Why a call came to nothing, before anyone says what it was for.
#[derive(Debug)]
pub(crate) enum CallError {
    NoAnswer(NoAnswer),
    Failed(Failure),
    Stopped,
    Unexpected,
}

impl CallError {
    pub(crate) fn new(failure: CallFailure, no_answer: impl FnOnce(Option<String>) -> NoAnswer) -> Self {
        match failure {
            CallFailure::Failed(why) => Self::Failed(why),
            CallFailure::Deadline(trouble) => Self::NoAnswer(no_answer(trouble)),
        }
    }
}

macro_rules! operation {
    (
        $(#[$doc:meta])* $name:ident($what:literal) { $($(#[$field_doc:meta])* $field:ident: $type:ty),* $(,)? }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
        pub enum $name {
            /// The node says why not.
            #[error("cannot {} at {address}: {why}", format_args!($what, $($field = $field),*))]
            Failed {
                $($(#[$field_doc])* $field: $type,)*
                /// The node.
                address: String,
                /// Why.
                why: Failure,
            },
            /// The node did not answer in time. Asking again is safe.
            #[error("cannot {}: {source}", format_args!($what, $($field = $field),*))]
            NoAnswer {
                $($(#[$field_doc])* $field: $type,)*
                /// The node, the time, and what was in the way.
                source: NoAnswer,
            },
            /// The node answered something that does not belong to the question.
            #[error(
                "cannot {}: {address} gave an answer that this client does not understand. Update it",
                format_args!($what, $($field = $field),*)
            )]
            Unexpected {
                $($(#[$field_doc])* $field: $type,)*
                /// The node.
                address: String,
            },
            /// The runtime that the client ran on is gone.
            #[error("the client for {address} has stopped, because the tokio runtime that it was made on has: make a new one")]
            Stopped {
                /// The node.
                address: String,
            },
        }

        impl $name {
            pub(crate) fn new(error: CallError, address: String, $($field: $type),*) -> Self {
                match error {
                    CallError::NoAnswer(source) => Self::NoAnswer { $($field,)* source },
                    CallError::Failed(why) => Self::Failed { $($field,)* address, why },
                    CallError::Unexpected => Self::Unexpected { $($field,)* address },
                    CallError::Stopped => Self::Stopped { address },
                }
            }
        }
    };
}

operation!(
    /// Why a color cannot be had.
    ColorError("get color '{color}'") {
        /// Its name; empty where all were asked for.
        color: String,
    }
);

impl ColorError {
    /// Whether there is no color of that name.
    #[must_use]
    pub fn is_no_such_color(&self) -> bool {
        matches!(self, Self::Failed { why: Failure::NoSuchColor(_), .. })
    }
}

operation!(
    /// Why a number, a tail or a neighbour cannot be read.
    ReadError("read {what} of color '{color}'") {
        /// The color's name.
        color: String,
        /// What was asked for.
        what: String,
    }
);

operation!(
    /// Why a color cannot be trimmed.
    TrimError("trim color '{color}' up to {upto}") {
        /// The color's name.
        color: String,
        /// As asked.
        upto: SeqNum,
    }
);

operation!(
    /// Why a node's status cannot be had.
    StatusError("get the status") {}
);

/// Why a subscription ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The node says why.
    #[error("the subscription to color '{color}' at {address} ended: {why}. What came before it is complete")]
    Failed {
        /// The color's name.
        color: String,
        /// The node.
        address: String,
        /// Why.
        why: Failure,
    },
    /// The runtime that the client ran on is gone.
    #[error("the client for {address} has stopped, because the tokio runtime that it was made on has: make a new one")]
    Stopped {
        /// The node.
        address: String,
    },
}
