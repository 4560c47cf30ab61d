//! Host nodes, which call functions of the program.

use green_ctx_sys::CUDA_HOST_NODE_PARAMS_v1;

use super::kind::{At, Kind};
use super::node::{Action, Node, Read};
use crate::callback::Callback;
use crate::pointer::{Answer, Ptr, valid};
use crate::state::State;

impl Kind for Callback {
    type Params = CUDA_HOST_NODE_PARAMS_v1;
    type Given = Ptr<CUDA_HOST_NODE_PARAMS_v1>;

    fn of(action: &Action) -> Option<Callback> {
        if let Action::Host(callback) = action { Some(callback.clone()) } else { None }
    }

    fn read(_: &mut State, params: Self::Given, _: At<'_>, _: Option<&Self>) -> Read {
        let value = params.read()?;
        let function = valid(value.fn_)?;
        Ok((Action::Host(Callback::host(function, params.held(value.userData))), 0))
    }

    fn write(self, _: &mut Node, out: Ptr<Self::Params>) -> Answer {
        let (function, user_data) = self.as_host();
        out.write(CUDA_HOST_NODE_PARAMS_v1 { fn_: function, userData: user_data })
    }
}
