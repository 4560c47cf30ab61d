//! Memset nodes.

use green_ctx_sys::{CUDA_MEMSET_NODE_PARAMS_v1, CUresult};

use super::kind::{At, Kind};
use super::node::{Action, Node, Read};
use crate::pointer::{Answer, Ptr, invalid_if, valid};
use crate::state::State;
use crate::work::Fill;

/// A memset of rows of elements.
#[derive(Clone)]
pub(crate) struct Memset {
    to: u64,
    /// The value. The memset writes the first `element` bytes of the value to each element. Queries return
    /// the whole value.
    value: u64,
    /// The size of an element in bytes: 1, 2 or 4.
    element: usize,
    /// The number of elements per row (`width`), and the number of rows (`height`).
    pub(super) width: usize,
    pub(super) height: usize,
    /// The distance between rows in bytes.
    pub(super) pitch: usize,
}

impl Memset {
    /// Returns the node of a captured memset.
    pub(crate) fn captured(fill: Fill) -> Memset {
        let Fill { to, pattern, len } = fill;
        let bytes = std::array::from_fn(|index| pattern.get(index).copied().unwrap_or(0));
        let (value, element) = (u64::from_le_bytes(bytes), pattern.len().max(1));
        Memset { to, value, element, width: len / element, height: 1, pitch: 0 }
    }

    /// Returns one memset per row.
    pub(super) fn rows(&self) -> impl Iterator<Item = Fill> + use<'_> {
        let len = self.width * self.element;
        let pattern = self.value.to_le_bytes()[..self.element].to_vec();
        (0..self.height as u64).map(move |row| {
            let to = self.to + row * self.pitch as u64;
            Fill { to, pattern: pattern.clone(), len }
        })
    }

    /// Reads the parameters of a node. Refuses memory that does not exist.
    fn parse(state: &State, params: Ptr<CUDA_MEMSET_NODE_PARAMS_v1>) -> Answer<Memset> {
        let value = params.read()?;
        let element = value.elementSize as usize;
        let aligned = || value.dst.is_multiple_of(element as u64);
        if ![1, 2, 4].contains(&element) || value.width == 0 || value.height == 0 || !aligned() {
            return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
        }
        let row = valid(value.width.checked_mul(element))?;
        let pitch = value.pitch;
        invalid_if(value.height > 1 && (pitch < row || !pitch.is_multiple_of(element)))?;
        let rows = (value.height - 1).checked_mul(pitch).and_then(|rows| rows.checked_add(row));
        state.node_target(value.dst, valid(rows)?)?;
        Ok(Memset {
            to: value.dst,
            value: value.value.into(),
            element,
            width: value.width,
            height: value.height,
            pitch,
        })
    }

    /// Returns the first address that the memset writes.
    pub(super) fn target(&self) -> u64 {
        self.to
    }
}

impl Kind for Memset {
    type Params = CUDA_MEMSET_NODE_PARAMS_v1;
    type Given = Ptr<CUDA_MEMSET_NODE_PARAMS_v1>;
    /// The context comes after the parameters.
    const CONTEXT: Option<usize> = Some(40);

    fn of(action: &Action) -> Option<Memset> {
        if let Action::Memset(memset) = action { Some(memset.clone()) } else { None }
    }

    fn read(state: &mut State, params: Self::Given, at: At<'_>, _: Option<&Self>) -> Read {
        let memset = Memset::parse(state, params)?;
        Ok((Action::Memset(memset), at.context(state)?))
    }

    fn write(self, _: &mut Node, out: Ptr<Self::Params>) -> Answer {
        out.write(CUDA_MEMSET_NODE_PARAMS_v1 {
            dst: self.to,
            pitch: self.pitch,
            value: self.value as u32,
            elementSize: self.element as u32,
            width: self.width,
            height: self.height,
        })
    }
}
