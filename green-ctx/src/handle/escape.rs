//! Work that escapes its partition, in a form that can be written down.

use std::fmt;

use crate::handle::listing::NodeAudit;
use crate::handle::location::Location;

/// Something that would run outside of the partition that it should be in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Escape {
    /// What it was called when it was handed over; for a launch the kernel's name, or `a graph`.
    pub name: String,
    /// The partition that it should be in.
    pub expected: String,
    /// What it is.
    pub kind: EscapeKind,
    /// Where it would run; `None` for a default stream where no context is current. Of a graph it is
    /// the first of its locations that is outside.
    pub location: Option<Location>,
}

/// What runs outside.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum EscapeKind {
    /// A default-stream token: its stream is one of whatever context is current.
    DefaultStream,
    /// A stream of the primary context, such as those of other libraries' pools.
    PrimaryStream,
    /// A stream of another partition.
    OtherStream,
    /// A context.
    Context,
    /// A graph, with the nodes that are outside.
    Graph {
        /// The nodes that are outside.
        nodes: Vec<NodeAudit>,
    },
    /// An executable graph of which nodes are outside.
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
