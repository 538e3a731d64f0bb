// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Decides what may be mapped through a descriptor, and by whom.

use shared_abi::Errno;
use shared_abi::ring::RING_FIRST_PAGE;

use crate::policy::Rights;
use crate::shown::{Observer, Subject};

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
}

/// The pages that a thread's descriptor has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mappable {
    /// Possible CPUs.
    pub cpus: u32,
    /// Pages of the thread's ring; 0 without a ring.
    pub ring_pages: u32,
    /// The owner of the vCPU pages: the identity that the thread had when it got its counters.
    pub observer: Observer,
}

/// The pages that a mapping shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapped {
    /// The thread's page, and every vCPU's behind it.
    Counters,
    /// The thread's ring.
    Ring,
}

/// Decides about a mapping that `caller` asks for. A descriptor that was passed on to somebody with
/// less rights does not show what other threads of its thread's user do, but its ring belongs to
/// the thread alone.
///
/// # Errors
///
/// `NXIO` if there is no ring; `PERM` if the mapping is not of all pages, not shared or not
/// read-only, or if the caller may not see the pages of the thread's user.
pub fn may_map(
    wanted: &Mapping,
    mappable: &Mappable,
    caller: &Subject,
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
    let is_own = caller.identity.may_see(&mappable.observer.identity);
    if fits && (is_own || rights.has_ptrace()) { Ok(Mapped::Counters) } else { Err(Errno::PERM) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shown::{Identity, SUBJECT_GUARDED, SUBJECT_OPEN};
    use crate::testing::{Person, identity};

    const ALICE: Subject = Subject { identity: identity(1001), kind: SUBJECT_OPEN };
    const OF: Mappable =
        Mappable { cpus: 4, ring_pages: 9, observer: Observer::new(identity(1001), 7, false) };
    const COUNTERS: Mapping =
        Mapping { first_page: 0, pages: 5, is_shared: true, may_change: false };
    const RING: Mapping = Mapping { first_page: RING_FIRST_PAGE, pages: 9, ..COUNTERS };

    fn decide(wanted: Mapping, of: Mappable) -> Result<Mapped, Errno> {
        may_map(&wanted, &of, &ALICE, &Person::new(false))
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
    fn another_identity_needs_the_right_to_trace_for_vcpu_pages_only() {
        let tracer = Person { ptrace: true, ..Person::new(false) };
        let others = [
            identity(1002),
            Identity { container: 0x200, ..ALICE.identity },
            Identity { users: 0x88, ..ALICE.identity },
            Identity { ids: ALICE.identity.ids + (1 << 32), ..ALICE.identity },
        ];
        for (asked, identity) in (1..).zip(others) {
            let other = Subject { identity, ..ALICE };
            let decide = |wanted, rights: &Person| may_map(wanted, &OF, &other, rights);
            assert_eq!(decide(&COUNTERS, &Person::new(false)), Err(Errno::PERM), "{other:?}");
            assert_eq!(decide(&RING, &Person::new(false)), Ok(Mapped::Ring), "{other:?}");
            assert_eq!(decide(&COUNTERS, &tracer), Ok(Mapped::Counters), "{other:?}");
            assert_eq!(tracer.questions(), asked);
        }
        let hidden = Subject { kind: SUBJECT_GUARDED, ..ALICE };
        assert_eq!(may_map(&COUNTERS, &OF, &hidden, &tracer), Ok(Mapped::Counters));
        let more = Identity { capabilities: 1 << 10, ..ALICE.identity };
        let more = Subject { identity: more, ..ALICE };
        assert_eq!(may_map(&COUNTERS, &OF, &more, &tracer), Ok(Mapped::Counters));
        assert_eq!(tracer.questions(), 4, "the kernel is asked only where it matters");
        let capable = Observer { identity: more.identity, ..OF.observer };
        let of = Mappable { observer: capable, ..OF };
        assert_eq!(decide(COUNTERS, of), Err(Errno::PERM), "who has made it had more rights");
    }
}
