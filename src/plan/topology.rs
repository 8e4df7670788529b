//! How the devices of a communicator are joined, as data: what a plan's time follows from.

use std::{fmt, str::FromStr};

/// What joins devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Wiring {
    /// Each device has one way to a switch that lets all ways work at full rate.
    Switch,
    /// Each pair of devices has a link of its own.
    Mesh,
    /// All share one way: the machine's bus, or links that several ranks of a device share.
    Bus,
    /// All ranks are on one device, whose memory they share.
    Device,
    /// All ranks are in the machine's own memory.
    Host,
}

impl Wiring {
    /// Every kind.
    pub const ALL: [Wiring; 5] = [Wiring::Switch, Wiring::Mesh, Wiring::Bus, Wiring::Device, Wiring::Host];

    /// The name, as tuning files and the command line use it.
    pub const fn name(self) -> &'static str {
        match self {
            Wiring::Switch => "switch",
            Wiring::Mesh => "mesh",
            Wiring::Bus => "bus",
            Wiring::Device => "device",
            Wiring::Host => "host",
        }
    }
}

impl fmt::Display for Wiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Wiring {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        Wiring::ALL.into_iter().find(|w| w.name() == s).ok_or_else(|| {
            let names: Vec<_> = Wiring::ALL.iter().map(|w| w.name()).collect();
            format!("unknown wiring `{s}`; they are {}", names.join(", "))
        })
    }
}

/// How devices are joined, how fast, and what a launch and a flag cost there. What the cost model knows of a machine.
///
/// Rates are bytes a second that a kernel reaches, not what a link is sold for; times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Topology {
    /// What joins them.
    pub wiring: Wiring,
    /// Of a device to or from its switch, of one link of a mesh in one direction, of all of a bus, or of the shared
    /// memory, reads and writes together.
    pub rate: u64,
    /// Both directions of a device's way to its switch together, where both are used. Elsewhere not looked at.
    pub both_ways: u64,
    /// Of one block, at most.
    pub block_rate: u64,
    /// A launch that does nothing, in a row of launches.
    pub launch_ns: u32,
    /// A release, by which a flag is told after data.
    pub release_ns: u32,
    /// A flag on its way from rank to rank.
    pub flight_ns: u32,
    /// The first bytes of a read of a peer's memory.
    pub read_ns: u32,
    /// What each further peer costs: its record, its flags.
    pub peer_ns: u32,
}

/// What one kernel reaches of the rate that a link's maker tells, in percent: 374 of 478 GB/s were measured.
const REACHED: u64 = 78;
/// Of a link of which nobody tells the rate.
const LINK: u64 = 48_000_000_000;
/// Of a bus of which nobody tells anything.
const BUS: u64 = 25_000_000_000;
/// Of a device's memory.
const DEVICE_MEMORY: u64 = 3_500_000_000_000;
/// Of the machine's memory.
const HOST_MEMORY: u64 = 10_000_000_000;

impl Topology {
    /// A switch: `rate` of each device, in each direction.
    pub const fn switch(rate: u64) -> Self {
        Topology {
            wiring: Wiring::Switch,
            rate,
            both_ways: rate.saturating_mul(2),
            // 16 blocks were measured to pull 358 GB/s of a link of 374.
            block_rate: 22_000_000_000,
            launch_ns: 2400,
            release_ns: 700,
            flight_ns: 1200,
            read_ns: 900,
            peer_ns: 150,
        }
    }

    /// A link between each pair of devices: `rate` of one, in each direction.
    pub const fn mesh(rate: u64) -> Self {
        Topology { wiring: Wiring::Mesh, ..Topology::switch(rate) }
    }

    /// A bus: `rate` of all that is on it.
    pub const fn bus(rate: u64) -> Self {
        Topology { wiring: Wiring::Bus, flight_ns: 2000, read_ns: 1500, ..Topology::switch(rate) }
    }

    /// Ranks that share a device: `rate` of its memory, reads and writes together.
    pub const fn device(rate: u64) -> Self {
        Topology {
            wiring: Wiring::Device,
            block_rate: 60_000_000_000,
            launch_ns: 2200,
            release_ns: 400,
            flight_ns: 700,
            read_ns: 400,
            ..Topology::switch(rate)
        }
    }

    /// Ranks that are threads: `rate` of the machine's memory, reads and writes together.
    pub const fn host(rate: u64) -> Self {
        Topology {
            wiring: Wiring::Host,
            launch_ns: 1000,
            release_ns: 100,
            flight_ns: 500,
            read_ns: 100,
            peer_ns: 2000,
            ..Topology::switch(rate)
        }
    }

    /// What is known without being told, of a wiring.
    pub const fn of(wiring: Wiring) -> Self {
        match wiring {
            Wiring::Switch => Topology::switch(8 * LINK),
            Wiring::Mesh => Topology::mesh(LINK),
            Wiring::Bus => Topology::bus(BUS),
            Wiring::Device => Topology::device(DEVICE_MEMORY),
            Wiring::Host => Topology::host(HOST_MEMORY),
        }
    }

    /// From what drivers tell: `ranks` ranks, the ways between each pair of their `devices` different devices.
    pub(crate) fn detected(ranks: usize, devices: usize, host: bool, ways: &[Way]) -> Self {
        if host || (devices > 1 && ways.iter().all(|way| *way == Way::Memory)) {
            return Topology::of(Wiring::Host);
        }
        if devices <= 1 {
            return Topology::of(Wiring::Device);
        }
        let mut lanes = u32::MAX;
        let mut rate = u64::MAX;
        for way in ways {
            match *way {
                Way::Memory => {}
                Way::Bus => return Topology::of(Wiring::Bus),
                Way::Direct { lanes: n, rate: told } => {
                    lanes = lanes.min(n.max(1));
                    rate = rate.min(told.map_or(u64::from(n.max(1)).saturating_mul(LINK), |told| told / 100 * REACHED));
                }
            }
        }
        let rate = rate.max(1);
        if ranks > devices {
            // Its ranks share what a device has.
            let links = Topology::switch(rate);
            return Topology { wiring: Wiring::Bus, ..links };
        }
        // Drivers tell how many links a device has, or that there is one between two: a device with one link for each of
        // several peers has one to each.
        if lanes == 1 && devices > 2 { Topology::mesh(rate) } else { Topology::switch(rate) }
    }
}

/// What a driver says of the way between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Memory,
    Direct { lanes: u32, rate: Option<u64> },
    Bus,
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate as f64 / 1e9;
        match self.wiring {
            Wiring::Switch => write!(f, "switch, {rate:.1} GB/s a device and direction"),
            Wiring::Mesh => write!(f, "full mesh, {rate:.1} GB/s a link and direction"),
            Wiring::Bus => write!(f, "shared way, {rate:.1} GB/s in all"),
            Wiring::Device => write!(f, "one device, {rate:.1} GB/s of its memory"),
            Wiring::Host => write!(f, "host memory, {rate:.1} GB/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINKS: Way = Way::Direct { lanes: 18, rate: Some(478_000_000_000) };

    #[test]
    fn a_switch_is_told_by_its_lanes() {
        for devices in [2, 4, 8] {
            let found = Topology::detected(devices, devices, false, &vec![LINKS; devices * (devices - 1) / 2]);
            assert_eq!((found.wiring, found.rate), (Wiring::Switch, 372_840_000_000), "{devices}");
        }
    }

    #[test]
    fn one_link_a_pair_is_a_mesh() {
        let link = Way::Direct { lanes: 1, rate: None };
        let found = Topology::detected(8, 8, false, &[link; 28]);
        assert_eq!((found.wiring, found.rate), (Wiring::Mesh, LINK));
        // Two devices have one link either way.
        assert_eq!(Topology::detected(2, 2, false, &[link]).rate, LINK);
    }

    /// One pair that goes by the bus makes all that wait for it go by the bus.
    #[test]
    fn the_slowest_way_decides() {
        let found = Topology::detected(4, 4, false, &[LINKS, LINKS, Way::Bus, LINKS, LINKS, LINKS]);
        assert_eq!(found, Topology::bus(BUS));
    }

    #[test]
    fn ranks_that_share() {
        assert_eq!(Topology::detected(8, 1, false, &[]).wiring, Wiring::Device);
        assert_eq!(Topology::detected(1, 1, false, &[]).wiring, Wiring::Device);
        let two = Topology::detected(8, 2, false, &[LINKS]);
        assert_eq!((two.wiring, two.rate, two.flight_ns), (Wiring::Bus, 372_840_000_000, 1200));
        assert_eq!(Topology::detected(4, 4, false, &[Way::Memory; 6]).wiring, Wiring::Host);
        assert_eq!(Topology::detected(4, 1, true, &[]).wiring, Wiring::Host);
    }

    /// What drivers say that cannot be.
    #[test]
    fn no_rate_is_no_division_by_zero() {
        assert_eq!(Topology::detected(2, 2, false, &[Way::Direct { lanes: 0, rate: Some(0) }]).rate, 1);
    }

    /// What is nearer costs less: a flag over a bus more than by a switch, within a device less, within the host's caches
    /// least, where a further peer is another thread to wake instead.
    #[test]
    fn what_is_nearer_costs_less() {
        let [switch, bus, device, host] = [Wiring::Switch, Wiring::Bus, Wiring::Device, Wiring::Host].map(Topology::of);
        let waits: [fn(&Topology) -> u32; 2] = [|t| t.flight_ns, |t| t.read_ns];
        for wait in waits {
            let [switch, bus, device, host] = [switch, bus, device, host].map(|t| wait(&t));
            assert!(host < device && device < switch && switch < bus);
        }
        let works: [fn(&Topology) -> u32; 2] = [|t| t.launch_ns, |t| t.release_ns];
        for work in works {
            let [switch, device, host] = [switch, device, host].map(|t| work(&t));
            assert!(host < device && device < switch);
        }
        assert!(host.peer_ns > device.peer_ns && device.block_rate > switch.block_rate);
        assert_eq!(switch.rate, 8 * Topology::of(Wiring::Mesh).rate);
    }

    #[test]
    fn names() {
        for wiring in Wiring::ALL {
            assert_eq!(wiring.to_string().parse(), Ok(wiring));
            assert_eq!(Topology::of(wiring).wiring, wiring);
        }
        assert_eq!(
            "ring".parse::<Wiring>().unwrap_err(),
            "unknown wiring `ring`; they are switch, mesh, bus, device, host"
        );
    }
}
