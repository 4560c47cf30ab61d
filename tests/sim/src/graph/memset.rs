//! Nodes that fill memory.

use green_ctx_sys::{CUDA_MEMSET_NODE_PARAMS_v1, CUctx_st, CUgraph_st, CUgraphNode_st, CUresult};

use super::node::{Action, OTHER_KIND, Place};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr};
use crate::state::State;
use crate::work::{Fill, Rows};

/// A fill of rows of elements.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Memset {
    to: u64,
    /// An element is as many of its first bytes as an element has; the others are kept.
    value: u64,
    /// The size of an element in bytes: 1, 2 or 4, or 8 for a captured write of 64 bits.
    element: usize,
    /// Elements in a row, and rows.
    pub(super) width: usize,
    pub(super) height: usize,
    /// Bytes from one row to the next.
    pub(super) pitch: usize,
}

impl Memset {
    /// What a captured fill does.
    pub(crate) fn captured(fill: Fill) -> Memset {
        let Fill { to, pattern, rows } = fill;
        let bytes = std::array::from_fn(|index| pattern.get(index).copied().unwrap_or(0));
        let (value, element) = (u64::from_le_bytes(bytes), pattern.len().max(1));
        let pitch = if rows.height > 1 { rows.pitch } else { 0 };
        Memset { to, value, element, width: rows.width / element, height: rows.height, pitch }
    }

    /// The fills of its rows.
    pub(super) fn rows(&self) -> impl Iterator<Item = Fill> + use<'_> {
        let len = self.width * self.element;
        let pattern = self.value.to_le_bytes()[..self.element].to_vec();
        (0..self.height as u64).map(move |row| {
            let to = self.to + row * self.pitch as u64;
            Fill { to, pattern: pattern.clone(), rows: Rows::line(len) }
        })
    }

    /// Reads the parameters of a node, and refuses those of memory that is not there.
    pub(super) fn read(state: &State, params: Ptr<CUDA_MEMSET_NODE_PARAMS_v1>) -> Answer<Memset> {
        let value = params.read()?;
        let element = value.elementSize as usize;
        let aligned = || value.dst.is_multiple_of(element as u64);
        if ![1, 2, 4].contains(&element) || value.width == 0 || value.height == 0 || !aligned() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let row = value.width.checked_mul(element).ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?;
        let pitch = value.pitch;
        if value.height > 1 && (pitch < row || !pitch.is_multiple_of(element)) {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let rows = (value.height - 1).checked_mul(pitch).and_then(|rows| rows.checked_add(row));
        state.node_target(value.dst, rows.ok_or(CUresult::CUDA_ERROR_INVALID_VALUE)?)?;
        Ok(Memset {
            to: value.dst,
            value: value.value.into(),
            element,
            width: value.width,
            height: value.height,
            pitch,
        })
    }

    pub(super) fn write(&self, out: Ptr<CUDA_MEMSET_NODE_PARAMS_v1>) -> Answer {
        out.write(CUDA_MEMSET_NODE_PARAMS_v1 {
            dst: self.to,
            pitch: self.pitch,
            value: self.value as u32,
            elementSize: self.element as u32,
            width: self.width,
            height: self.height,
        })
    }

    /// The size of an element in bytes.
    pub(super) fn element(&self) -> usize {
        self.element
    }

    /// An address that it fills.
    pub(super) fn target(&self) -> u64 {
        self.to
    }
}

/// Replaces what a node fills. Where no context is named it moves to the current one, as recorded.
/// Where none is current either it leaves the one that it had, as recorded, and has none of its own
/// (which of the others it goes to is not recorded).
pub(super) fn set(
    state: &mut State,
    node: usize,
    params: Ptr<CUDA_MEMSET_NODE_PARAMS_v1>,
    context: Option<usize>,
) -> Answer {
    let found = state.node(node)?;
    if !matches!(found.action, Action::Memset(_)) {
        return Err(OTHER_KIND);
    }
    let context = match context.or_else(|| state.current_handle()) {
        Some(context) => {
            state.context(context)?;
            context
        }
        None => 0,
    };
    let memset = Memset::read(state, params)?;
    state.set_action(node, Action::Memset(memset), context);
    Ok(())
}

/// Adds a node. A null context is accepted, as recorded, and means the current one (which is not).
pub(crate) fn add(
    driver: &Driver,
    out: Ptr<*mut CUgraphNode_st>,
    graph: Ptr<CUgraph_st>,
    after: Ptr<*mut CUgraphNode_st>,
    count: usize,
    params: Ptr<CUDA_MEMSET_NODE_PARAMS_v1>,
    context: Ptr<CUctx_st>,
) -> Answer {
    Place::new(out, graph, after, count).add(driver, |state| {
        let memset = Memset::read(state, params)?;
        Ok((Action::Memset(memset), state.or_current(context.address())?))
    })
}

pub(crate) fn get_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    out: Ptr<CUDA_MEMSET_NODE_PARAMS_v1>,
) -> Answer {
    let state = driver.state();
    match &state.node(node.address())?.action {
        Action::Memset(memset) => memset.write(out),
        _ => Err(OTHER_KIND),
    }
}

pub(crate) fn set_params(
    driver: &Driver,
    node: Ptr<CUgraphNode_st>,
    params: Ptr<CUDA_MEMSET_NODE_PARAMS_v1>,
) -> Answer {
    set(&mut driver.state(), node.address(), params, None)
}
