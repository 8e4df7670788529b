//! What the targets differ in, but for their instructions' names, which `isa` has.

/// A target whose code objects are executed.
#[derive(Debug)]
pub(crate) struct Architecture {
    /// As compilers call it.
    pub(crate) name: &'static str,
    /// With features, as the driver says it.
    pub(crate) full_name: &'static str,
    /// The number in a code object's `e_flags`.
    pub(crate) machine: u32,
    /// Lanes of a wave.
    pub(crate) lanes: u32,
    /// Compute units, or pairs of them as HIP counts for RDNA, of a device unless the environment says otherwise.
    pub(crate) units: u32,
    pub(crate) caches: CacheKind,
    pub(crate) unit: Unit,
    pub(crate) names: Names,
}

/// Which caches vector memory operations go through, and what acts on them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CacheKind {
    /// One a die that is written back and invalidated by scope. Instructions say the scope of each access.
    Dies,
    /// One a device that keeps stores until they are written back, and what is not the device's own until it is
    /// invalidated; one a unit before it, which stores go through.
    Units,
    /// Nothing keeps stores. One a compute unit, of which a unit here has two, and one a shader array before memory.
    Pairs,
}

/// What limits the blocks of a unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// Vector units, the registers of each for a lane, and the waves that each holds.
    pub(crate) vector_units: u32,
    pub(crate) registers: u32,
    pub(crate) waves: u32,
    pub(crate) shared: u32,
    /// Blocks that have barriers.
    pub(crate) blocks: u32,
}

/// Whose names instructions and their modifiers have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Names {
    Gfx90a,
    Gfx942,
    Gfx1100,
}

/// Arrays of gfx1100: units share a cache of the second level.
pub(crate) const ARRAYS: u32 = 12;

/// A pair of compute units: four vector units with 1536 registers and 16 waves each; 128 KiB; 32 blocks.
const RDNA: Unit = Unit { vector_units: 4, registers: 1536, waves: 16, shared: 131_072, blocks: 32 };

/// Four vector units with 512 registers and 8 waves each; 64 KiB; 16 blocks that have barriers.
const CDNA: Unit = Unit { vector_units: 4, registers: 512, waves: 8, shared: 65536, blocks: 16 };

static ALL: [Architecture; 3] = [
    Architecture {
        name: "gfx90a",
        full_name: "gfx90a:sramecc+:xnack-",
        machine: 0x3f,
        lanes: 64,
        units: 104,
        caches: CacheKind::Units,
        unit: CDNA,
        names: Names::Gfx90a,
    },
    Architecture {
        name: "gfx942",
        full_name: "gfx942:sramecc+:xnack-",
        machine: 0x4c,
        lanes: 64,
        units: 304,
        caches: CacheKind::Dies,
        unit: CDNA,
        names: Names::Gfx942,
    },
    Architecture {
        name: "gfx1100",
        full_name: "gfx1100",
        machine: 0x41,
        lanes: 32,
        units: 48,
        caches: CacheKind::Pairs,
        unit: RDNA,
        names: Names::Gfx1100,
    },
];

/// The target that is emulated unless another is asked for.
pub(crate) const DEFAULT: &str = "gfx942";

/// The target of this name; an error lists the known ones.
pub(crate) fn named(name: &str) -> Result<&'static Architecture, String> {
    ALL.iter().find(|a| a.name == name).ok_or_else(|| {
        let known: Vec<_> = ALL.iter().map(|a| a.name).collect();
        format!("{name} is no target that is emulated; known are {}", known.join(", "))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn targets_have_names_and_others_are_told_them() {
        assert_eq!(super::named(super::DEFAULT).expect("known").machine, 0x4c);
        let why = super::named("gfx90").expect_err("no target");
        assert_eq!(why, "gfx90 is no target that is emulated; known are gfx90a, gfx942, gfx1100");
    }
}
