//! What joins two devices. The driver tells of peer access alone; NVIDIA's management library, where it is there,
//! knows the links.

use std::sync::OnceLock;

use nvml_wrapper::{
    Nvml,
    enums::device::SampleValue,
    structs::device::FieldId,
    sys_exports::field_id::{NVML_FI_DEV_NVLINK_LINK_COUNT, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON},
};

use super::{
    super::{Fault, Link},
    device::CudaDevice,
    driver::sys::CUdevice_P2PAttribute as Attribute,
};

pub(super) fn between(from: &CudaDevice, to: &CudaDevice) -> Result<Link, Fault> {
    if from == to {
        return Ok(Link::Memory);
    }
    let atomics = from.peer_attribute(to, Attribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)? != 0;
    let class = from.peer_attribute(to, Attribute::CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)?.max(0) as u32;
    // Over the bus there are no atomics; over NVLink there are.
    let (mine, theirs) = (from.bus_id()?, to.bus_id()?);
    let both = if atomics { lanes(&mine).zip(lanes(&theirs)) } else { None };
    Ok(match both {
        Some((a, b)) if a.0 > 0 && b.0 > 0 => {
            let (lanes, each) = a.min(b);
            Link::Direct { lanes, rate: each.map(|rate| rate * u64::from(lanes)) }
        }
        _ => Link::Bus { atomics: Some(atomics), class },
    })
}

/// Links of the device that are up, and the rate of one in bytes a second. `None` where nobody tells.
fn lanes(bus_id: &str) -> Option<(u32, Option<u64>)> {
    // Once: to begin takes longer than all questions, and each communicator asks for every pair.
    static LIBRARY: OnceLock<Option<Nvml>> = OnceLock::new();
    // The name that comes with the driver; the other one comes with a toolkit.
    let open = || Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().ok();
    let nvml = LIBRARY.get_or_init(open).as_ref()?;
    let device = nvml.device_by_pci_bus_id(bus_id).ok()?;
    let field = |id| match device.field_values_for(&[FieldId(id)]).ok()?.pop()?.ok()?.value.ok()? {
        SampleValue::U32(value) => Some(u64::from(value)),
        SampleValue::U64(value) => Some(value),
        SampleValue::F64(value) => Some(value as u64),
        _ => None,
    };
    let count = field(NVML_FI_DEV_NVLINK_LINK_COUNT)? as u32;
    let up = (0..count).filter(|link| device.link_wrapper_for(*link).is_active().unwrap_or(false)).count();
    Some((up as u32, field(NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON).map(|mega| mega * 1_000_000)))
}
