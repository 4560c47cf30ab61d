//! Nodes that record events and wait for them.

use green_ctx_sys::CUevent_st;

use super::kind::{At, Kind};
use super::node::{Action, Node, Read};
use crate::handle;
use crate::pointer::{Answer, Ptr};
use crate::state::State;

/// A node that records the event with this handle, or waits for it.
pub(crate) struct EventNode<const RECORDS: bool>(usize);

pub(crate) type Record = EventNode<true>;
pub(crate) type Wait = EventNode<false>;

impl<const RECORDS: bool> Kind for EventNode<RECORDS> {
    type Params = *mut CUevent_st;
    type Given = Ptr<CUevent_st>;

    fn of(action: &Action) -> Option<Self> {
        match (action, RECORDS) {
            (Action::RecordEvent(event), true) | (Action::WaitEvent(event), false) => {
                Some(EventNode(*event))
            }
            _ => None,
        }
    }

    /// A null handle is an invalid value like every parameter of a node (cuda.h); others are looked up
    /// as everywhere.
    fn read(state: &mut State, event: Self::Given, _: At<'_>, _: Option<&Self>) -> Read {
        let event = event.given()?.address();
        state.event(event)?;
        Ok((if RECORDS { Action::RecordEvent(event) } else { Action::WaitEvent(event) }, 0))
    }

    fn write(self, _: &mut Node, out: Ptr<Self::Params>) -> Answer {
        out.write(handle::pointer(self.0))
    }
}
