//! Descriptions of work that runs outside its partition.

use std::fmt;

use crate::handle::listing::NodeAudit;
use crate::handle::location::Location;

/// Work that would run outside its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Escape {
    /// The name under which the work was watched. For a launch, this is the kernel's name or `a graph`.
    pub name: String,
    /// The partition in which the work should run.
    pub expected: String,
    /// The kind of work.
    pub kind: EscapeKind,
    /// The location where the work would run. `None` for a default stream if no context is current. For a graph, this
    /// is the first location outside the partition.
    pub location: Option<Location>,
}

/// The kinds of work that can run outside a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EscapeKind {
    /// A default-stream token, which means a stream of the context that is current when the token is used.
    DefaultStream,
    /// A stream of a context that is not green, such as a stream of another library's pool.
    PrimaryStream,
    /// A stream of another green context: a partition, or one of another library.
    OtherStream,
    /// A context.
    Context,
    /// A graph with nodes outside the partition.
    Graph {
        /// The nodes outside the partition.
        nodes: Vec<NodeAudit>,
    },
    /// An executable graph with nodes outside the partition.
    GraphLaunch,
}

impl fmt::Display for Escape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Escape { name, expected, kind, location } = self;
        write!(f, "{name} escapes {expected}: {kind}")?;
        match location {
            Some(location) => write!(f, ", {location}"),
            None => f.write_str(", and no context is current"),
        }
    }
}

impl fmt::Display for EscapeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EscapeKind::DefaultStream => f.write_str("the default stream of the current context"),
            EscapeKind::PrimaryStream => f.write_str("a stream of the primary context"),
            EscapeKind::OtherStream => f.write_str("a stream of another partition"),
            EscapeKind::Context => f.write_str("another context"),
            EscapeKind::Graph { nodes } => {
                f.write_str("a graph whose nodes ")?;
                for (index, node) in nodes.iter().enumerate() {
                    let comma = if index == 0 { "" } else { ", " };
                    write!(f, "{comma}{}", node.node)?;
                    if let Some(kernel) = &node.kernel {
                        write!(f, " ({kernel})")?;
                    }
                }
                f.write_str(" are elsewhere")
            }
            EscapeKind::GraphLaunch => f.write_str("a graph with nodes elsewhere"),
        }
    }
}
