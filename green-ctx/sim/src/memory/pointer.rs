//! Queries about addresses.

use std::ffi::c_void;

use green_ctx_sys::{CUmemorytype, CUpointer_attribute, CUresult};

use super::{Allocation, Kind};
use crate::driver::Driver;
use crate::pointer::{Answer, Ptr, invalid_if, refuse_if, valid};
use crate::state::State;

/// The last attribute that the header of the recorded driver defines.
const LAST: u32 = CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE.0;

/// The value of an attribute, with the type in which it is written.
#[derive(Clone, Copy)]
enum Value {
    /// An `int` or an `unsigned int`.
    Int(i32),
    /// A flag of one byte.
    Flag(bool),
    /// A number, address or handle of eight bytes.
    Long(u64),
}

impl Value {
    fn write(self, out: Ptr<c_void>) -> Answer {
        match self {
            Value::Int(value) => out.cast().write(value),
            Value::Flag(value) => out.cast().write(u8::from(value)),
            Value::Long(value) => out.cast().write(value),
        }
    }
}

impl State {
    /// Fails if there is a current context that is unusable. A query about an address needs no current
    /// context (recorded on hardware for one attribute only).
    pub(super) fn usable_if_current(&mut self) -> Answer {
        match self.current_handle() {
            Some(context) => self.context(context).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the allocation that contains an address, unless it was freed.
    fn pointed_to(&self, address: u64) -> Option<(u64, &Allocation)> {
        self.allocation(address).filter(|(_, allocation)| !allocation.freed)
    }

    /// Returns an attribute of an address; `None` if the attribute has no value at this address.
    fn pointer_attribute(&self, attribute: CUpointer_attribute, address: u64) -> Option<Value> {
        use CUpointer_attribute as A;
        let (base, allocation) = self.pointed_to(address)?;
        Some(match attribute {
            // Memory of a pool belongs to no context. Other memory belongs to the device's primary context,
            // like an event (recorded on hardware).
            A::CU_POINTER_ATTRIBUTE_CONTEXT if allocation.pool.is_some() => Value::Long(0),
            A::CU_POINTER_ATTRIBUTE_CONTEXT => {
                Value::Long(self.devices[allocation.device].primary as u64)
            }
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
                let device = !allocation.on_host();
                let kind = if device {
                    CUmemorytype::CU_MEMORYTYPE_DEVICE
                } else {
                    CUmemorytype::CU_MEMORYTYPE_HOST
                };
                Value::Int(kind.0 as i32)
            }
            A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => Value::Long(address),
            A::CU_POINTER_ATTRIBUTE_HOST_POINTER if allocation.kind == Kind::Device => return None,
            A::CU_POINTER_ATTRIBUTE_HOST_POINTER => Value::Long(address),
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID => Value::Long(allocation.id),
            A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS | A::CU_POINTER_ATTRIBUTE_IS_MANAGED => {
                Value::Flag(false)
            }
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => {
                Value::Int(self.physical(allocation.device) as i32)
            }
            A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE => {
                Value::Flag(allocation.kind == Kind::Device && allocation.pool.is_none())
            }
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR => Value::Long(base),
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE => Value::Long(allocation.len() as u64),
            A::CU_POINTER_ATTRIBUTE_MAPPED => Value::Flag(true),
            A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Long(0),
            A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
                Value::Long(allocation.pool.map_or(0, |pool| pool as u64))
            }
            _ => return None,
        })
    }
}

/// Returns the default value of an attribute's type, which applies to an address outside all memory
/// (header).
fn default_of(attribute: CUpointer_attribute) -> Option<Value> {
    use CUpointer_attribute as A;
    Some(match attribute {
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => Value::Int(0),
        // The driver uses this number for no ordinal (recorded on hardware).
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => Value::Int(-2),
        A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | A::CU_POINTER_ATTRIBUTE_IS_MANAGED
        | A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_MAPPED => Value::Flag(false),
        A::CU_POINTER_ATTRIBUTE_CONTEXT
        | A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE
        | A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER
        | A::CU_POINTER_ATTRIBUTE_HOST_POINTER
        | A::CU_POINTER_ATTRIBUTE_BUFFER_ID
        | A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR
        | A::CU_POINTER_ATTRIBUTE_RANGE_SIZE
        | A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => Value::Long(0),
        _ => return None,
    })
}

/// Returns whether real drivers have this attribute but the simulator does not.
fn is_unsimulated(attribute: CUpointer_attribute) -> bool {
    (1..=LAST).contains(&attribute.0) && default_of(attribute).is_none()
}

pub(crate) fn get_attribute(
    driver: &Driver,
    out: Ptr<c_void>,
    attribute: CUpointer_attribute,
    address: u64,
) -> Answer {
    let mut state = driver.state();
    state.usable_if_current()?;
    out.given()?;
    refuse_if(is_unsimulated(attribute), CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
    let value = state.pointer_attribute(attribute, address);
    valid(value)?.write(out)
}

/// Reads several attributes. An attribute without a value gets the default of its type (header). Only the
/// size of the range is left unchanged in this case (recorded on hardware).
pub(crate) fn get_attributes(
    driver: &Driver,
    count: u32,
    attributes: Ptr<CUpointer_attribute>,
    out: Ptr<*mut c_void>,
    address: u64,
) -> Answer {
    let mut state = driver.state();
    state.usable_if_current()?;
    invalid_if(count == 0)?;
    attributes.given()?;
    out.given()?;
    for index in 0..count as usize {
        let attribute = attributes.element(index).read()?;
        refuse_if(is_unsimulated(attribute), CUresult::CUDA_ERROR_NOT_SUPPORTED)?;
        let default = valid(default_of(attribute))?;
        let value = state.pointer_attribute(attribute, address);
        if value.is_none() && attribute == CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE {
            continue;
        }
        let value = value.unwrap_or(default);
        value.write(out.element(index).follow()?)?;
    }
    Ok(())
}
