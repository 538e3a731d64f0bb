// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides what may be mapped through a descriptor, and by whom.

use shared_abi::Errno;
use shared_abi::ring::RING_FIRST_PAGE;

use crate::policy::Rights;

/// The mapping that a process asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Mapping {
    /// Its first page, counted in the descriptor's pages.
    pub first_page: u64,
    /// The number of its pages.
    pub pages: u64,
    /// Whether it is shared, and not the process's own copy.
    pub is_shared: bool,
    /// Whether the process wants to write there, or to execute what is there.
    pub may_change: bool,
    /// The process's effective user.
    pub uid: u32,
}

/// What a thread's descriptor has to map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappable {
    /// Possible CPUs.
    pub cpus: u32,
    /// Pages of the thread's ring; 0 without a ring.
    pub ring_pages: u32,
    /// The effective user that the thread had when it got its counters.
    pub uid: u32,
}

/// What is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The thread's page, and every vCPU's behind it.
    Counters,
    /// The thread's ring.
    Ring,
}

/// Decides about a mapping.  A descriptor that was passed on to another user does not show what
/// other threads of its thread's user do, but its ring belongs to the thread alone.
///
/// # Errors
///
/// `NXIO` if there is no ring; `PERM` if the mapping is not of all pages, not shared or not
/// read-only, or if the user may not look at the thread's user.
pub fn may_map(
    wanted: &Mapping,
    mappable: &Mappable,
    rights: &impl Rights,
) -> Result<Mapped, Errno> {
    let fits = |pages: u64| wanted.pages == pages && wanted.is_shared && !wanted.may_change;
    if wanted.first_page == RING_FIRST_PAGE {
        return match mappable.ring_pages {
            0 => Err(Errno::NXIO),
            pages if fits(pages.into()) => Ok(Mapped::Ring),
            _ => Err(Errno::PERM),
        };
    }
    let all = u64::from(mappable.cpus).saturating_add(1);
    let fits = wanted.first_page == 0 && fits(all);
    if fits && (wanted.uid == mappable.uid || rights.has_ptrace()) {
        Ok(Mapped::Counters)
    } else {
        Err(Errno::PERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Person;

    const OF: Mappable = Mappable { cpus: 4, ring_pages: 9, uid: 1001 };
    const COUNTERS: Mapping =
        Mapping { first_page: 0, pages: 5, is_shared: true, may_change: false, uid: 1001 };
    const RING: Mapping = Mapping { first_page: RING_FIRST_PAGE, pages: 9, ..COUNTERS };

    fn decide(wanted: Mapping, of: Mappable) -> Result<Mapped, Errno> {
        may_map(&wanted, &of, &Person::new(false))
    }

    #[test]
    fn what_is_mapped_is_all_of_it_shared_and_read_only() {
        for (wanted, mapped) in [(COUNTERS, Mapped::Counters), (RING, Mapped::Ring)] {
            assert_eq!(decide(wanted, OF), Ok(mapped));
            let refused = [
                Mapping { pages: wanted.pages - 1, ..wanted },
                Mapping { pages: wanted.pages + 1, ..wanted },
                Mapping { first_page: wanted.first_page + 1, ..wanted },
                Mapping { is_shared: false, ..wanted },
                Mapping { may_change: true, ..wanted },
            ];
            for refused in refused {
                assert_eq!(decide(refused, OF), Err(Errno::PERM), "{refused:?}");
            }
        }
        let without = Mappable { ring_pages: 0, ..OF };
        assert_eq!(decide(RING, without), Err(Errno::NXIO));
        assert_eq!(decide(Mapping { pages: 0, ..RING }, without), Err(Errno::NXIO));
        assert_eq!(decide(COUNTERS, without), Ok(Mapped::Counters));
    }

    #[test]
    fn another_user_needs_the_right_to_trace_for_vcpu_pages_only() {
        let other = Mapping { uid: 1002, ..COUNTERS };
        assert_eq!(decide(other, OF), Err(Errno::PERM));
        assert_eq!(decide(Mapping { uid: 1002, ..RING }, OF), Ok(Mapped::Ring));
        let tracer = Person { ptrace: true, ..Person::new(false) };
        assert_eq!(may_map(&other, &OF, &tracer), Ok(Mapped::Counters));
        assert_eq!(tracer.questions(), 1);
        assert_eq!(may_map(&COUNTERS, &OF, &tracer), Ok(Mapped::Counters));
        assert_eq!(tracer.questions(), 1, "the kernel is asked only where it matters");
    }
}
