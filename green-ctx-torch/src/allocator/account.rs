//! The accounts of an allocator: the bytes that each owner uses, and each owner's limit.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use green_ctx::context::Context;

use super::error::AllocatorError;

/// The usage of an account: bytes and blocks in use, peaks, counts and the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// The bytes in use: the requested bytes of all blocks that have not been returned to the driver.
    pub current_bytes: u64,
    /// The greatest number of bytes in use since the peak was last reset.
    pub peak_bytes: u64,
    /// The number of blocks in use.
    pub current_blocks: u64,
    /// The greatest number of blocks in use since the peak was last reset.
    pub peak_blocks: u64,
    /// The number of blocks allocated so far.
    pub allocations: u64,
    /// The number of requests that a limit refused.
    pub refusals: u64,
    /// The number of requests that failed for another reason, for example because the device had no memory.
    pub failures: u64,
    /// The maximum number of bytes in use, or `None` if there is no limit.
    pub limit_bytes: Option<u64>,
}

/// A usage, and the bytes that are reserved for blocks while the driver allocates them.
#[derive(Clone, Copy, Default)]
struct Account {
    usage: Usage,
    reserved: u64,
    /// The value of `Accounts::uses` when this account was last used.
    last_use: u64,
}

impl Account {
    fn used(&self) -> u64 {
        self.usage.current_bytes.saturating_add(self.reserved)
    }

    /// Returns whether the account has no blocks in use, no reserved bytes and no limit.
    fn is_unused(&self) -> bool {
        self.usage.current_blocks == 0 && self.reserved == 0 && self.usage.limit_bytes.is_none()
    }

    fn check(&self, owner: Option<&Owner>, bytes: u64) -> Result<(), AllocatorError> {
        let (used, limit) = (self.used(), self.usage.limit_bytes.unwrap_or(u64::MAX));
        if bytes <= limit.saturating_sub(used) {
            return Ok(());
        }
        Err(AllocatorError::Limit { owner: owner.cloned(), bytes, used, limit })
    }

    fn take(&mut self, bytes: u64) {
        let usage = &mut self.usage;
        usage.current_bytes += bytes;
        usage.current_blocks += 1;
        usage.allocations += 1;
        usage.peak_bytes = usage.peak_bytes.max(usage.current_bytes);
        usage.peak_blocks = usage.peak_blocks.max(usage.current_blocks);
    }

    fn give_back(&mut self, bytes: u64) {
        self.usage.current_bytes -= bytes;
        self.usage.current_blocks -= 1;
    }

    fn reset_peak(&mut self) {
        self.usage.peak_bytes = self.usage.current_bytes;
        self.usage.peak_blocks = self.usage.current_blocks;
    }
}

/// The owner of allocated memory. Each owner has an account.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Owner {
    /// Streams outside any partition: those of the primary context and of other ordinary (non-green) contexts.
    Outside,
    /// Streams of foreign green contexts.
    Foreign,
    /// Streams of partitions with this name.
    Partition(Arc<str>),
}

impl Owner {
    pub(super) fn of(context: &Context) -> Owner {
        match context.partition_name() {
            Some(name) => Owner::Partition(name),
            None if context.is_green() => Owner::Foreign,
            None => Owner::Outside,
        }
    }

    /// Returns the partition's name, or `None` if the owner is not a partition.
    #[must_use]
    pub fn partition(&self) -> Option<&str> {
        match self {
            Owner::Partition(name) => Some(name),
            Owner::Outside | Owner::Foreign => None,
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Owner::Outside => f.write_str("memory outside partitions"),
            Owner::Foreign => f.write_str("foreign green contexts"),
            Owner::Partition(name) => write!(f, "partition {name}"),
        }
    }
}

/// The maximum number of unused partition accounts that are kept. An unused account has no bytes in use and no limit.
/// The maximum bounds the number of accounts of partitions that no longer exist.
const KEPT: usize = 64;

/// The accounts of an allocator: the total, and one per owner.
#[derive(Default)]
pub(super) struct Accounts {
    total: Account,
    outside: Account,
    foreign: Account,
    partitions: BTreeMap<Arc<str>, Account>,
    /// The number of times that an account of a partition was used so far.
    uses: u64,
}

impl Accounts {
    /// Reserves bytes if the owner's limit and the limit of the whole allocator allow this. Otherwise counts a refusal.
    pub(super) fn reserve(&mut self, owner: &Owner, bytes: u64) -> Result<(), AllocatorError> {
        let [total, own] = self.both(owner);
        let fits = total.check(None, bytes).and_then(|()| own.check(Some(owner), bytes));
        for account in [total, own] {
            match &fits {
                Ok(()) => account.reserved += bytes,
                Err(_) => account.usage.refusals += 1,
            }
        }
        self.forget_unused();
        fits
    }

    /// Turns reserved bytes into bytes in use.
    pub(super) fn take(&mut self, owner: &Owner, bytes: u64) {
        for account in self.both(owner) {
            account.reserved -= bytes;
            account.take(bytes);
        }
    }

    /// Releases reserved bytes because the allocation failed, and counts the failure.
    pub(super) fn cancel(&mut self, owner: &Owner, bytes: u64) {
        for account in self.both(owner) {
            account.reserved -= bytes;
            account.usage.failures += 1;
        }
        self.forget_unused();
    }

    /// Removes a block that was returned to the driver from the accounts.
    pub(super) fn give_back(&mut self, owner: &Owner, bytes: u64) {
        for account in self.both(owner) {
            account.give_back(bytes);
        }
        self.forget_unused();
    }

    /// Returns the total account and the owner's account. Counts a use of a partition's account.
    fn both(&mut self, owner: &Owner) -> [&mut Account; 2] {
        let own = match owner {
            Owner::Outside => &mut self.outside,
            Owner::Foreign => &mut self.foreign,
            Owner::Partition(name) => {
                self.uses += 1;
                let account = self.partitions.entry(Arc::clone(name)).or_default();
                account.last_use = self.uses;
                account
            }
        };
        [&mut self.total, own]
    }

    /// Removes unused partition accounts, the least recently used first, until at most `KEPT` unused accounts remain.
    fn forget_unused(&mut self) {
        if self.partitions.len() <= KEPT {
            return;
        }
        let unused = self.partitions.values().filter(|account| account.is_unused());
        let mut last_uses: Vec<u64> = unused.map(|account| account.last_use).collect();
        let Some(surplus) = last_uses.len().checked_sub(KEPT).filter(|surplus| *surplus > 0) else {
            return;
        };
        last_uses.sort_unstable();
        let first_kept = last_uses[surplus];
        self.partitions.retain(|_, account| !account.is_unused() || account.last_use >= first_kept);
    }

    pub(super) fn set_limit(&mut self, limit: Option<u64>) {
        self.total.usage.limit_bytes = limit;
    }

    pub(super) fn set_outside_limit(&mut self, limit: Option<u64>) {
        self.outside.usage.limit_bytes = limit;
    }

    pub(super) fn set_foreign_limit(&mut self, limit: Option<u64>) {
        self.foreign.usage.limit_bytes = limit;
    }

    pub(super) fn set_partition_limit(&mut self, name: &str, limit: Option<u64>) {
        if limit.is_some() {
            let account = self.partitions.entry(Arc::from(name)).or_default();
            account.usage.limit_bytes = limit;
        } else if let Some(account) = self.partitions.get_mut(name) {
            account.usage.limit_bytes = None;
            // The limit was all that the account held.
            if account.is_unused() && account.usage == Usage::default() {
                self.partitions.remove(name);
            }
            self.forget_unused();
        }
    }

    pub(super) fn reset_peak(&mut self) {
        let others = [&mut self.total, &mut self.outside, &mut self.foreign];
        others.into_iter().chain(self.partitions.values_mut()).for_each(Account::reset_peak);
    }

    pub(super) fn total(&self) -> Usage {
        self.total.usage
    }

    pub(super) fn outside(&self) -> Usage {
        self.outside.usage
    }

    pub(super) fn foreign(&self) -> Usage {
        self.foreign.usage
    }

    pub(super) fn of(&self, name: &str) -> Option<Usage> {
        self.partitions.get(name).map(|account| account.usage)
    }

    pub(super) fn partitions(&self) -> BTreeMap<String, Usage> {
        self.partitions.iter().map(|(name, account)| (name.to_string(), account.usage)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition(name: &str) -> Owner {
        Owner::Partition(Arc::from(name))
    }

    #[test]
    fn what_is_being_allocated_counts_against_limits() {
        let mut accounts = Accounts::default();
        let (decode, prefill) = (partition("decode"), partition("prefill"));
        accounts.set_limit(Some(100));
        accounts.set_partition_limit("decode", Some(50));
        assert!(accounts.reserve(&decode, 40).is_ok());
        let refused = accounts.reserve(&decode, 11);
        assert!(matches!(
            refused,
            Err(AllocatorError::Limit { owner: Some(_), used: 40, limit: 50, .. })
        ));
        assert!(accounts.reserve(&prefill, 60).is_ok());
        let refused = accounts.reserve(&prefill, 1);
        assert!(matches!(refused, Err(AllocatorError::Limit { owner: None, used: 100, .. })));
        accounts.take(&decode, 40);
        accounts.cancel(&prefill, 60);
        let total = accounts.total();
        assert_eq!((total.current_bytes, total.peak_bytes), (40, 40));
        assert_eq!((total.refusals, total.failures, total.allocations), (2, 1, 1));
        let of = |accounts: &Accounts, name| accounts.of(name).expect("an account");
        assert_eq!(of(&accounts, "prefill").refusals, 1);
        assert_eq!(accounts.of("primary"), None);
        accounts.give_back(&decode, 40);
        assert_eq!((accounts.total().current_bytes, of(&accounts, "decode").peak_bytes), (0, 40));
        accounts.reset_peak();
        assert_eq!((accounts.total().peak_bytes, of(&accounts, "decode").peak_blocks), (0, 0));
    }

    #[test]
    fn no_size_overflows() {
        let mut accounts = Accounts::default();
        let name = partition("decode");
        assert!(accounts.reserve(&name, u64::MAX).is_ok());
        assert!(accounts.reserve(&name, 1).is_err());
        accounts.cancel(&name, u64::MAX);
        assert!(accounts.reserve(&name, 1).is_ok());
    }

    #[test]
    fn no_name_stands_for_what_has_none() {
        let mut accounts = Accounts::default();
        let owners = ["primary", "borrowed", ""].map(partition);
        accounts.set_outside_limit(Some(10));
        accounts.set_foreign_limit(Some(20));
        for owner in owners.iter().chain(&[Owner::Outside, Owner::Foreign]) {
            assert!(accounts.reserve(owner, 8).is_ok());
            accounts.take(owner, 8);
        }
        assert_eq!(accounts.total().current_bytes, 40);
        let others = [accounts.outside(), accounts.foreign()];
        assert_eq!(others.map(|usage| (usage.current_bytes, usage.peak_blocks)), [(8, 1); 2]);
        let refused = accounts.reserve(&Owner::Outside, 3).expect_err("a limit");
        assert!(refused.to_string().contains("8 of the 10 bytes of memory outside partitions"));
        let refused = accounts.reserve(&Owner::Foreign, 13).expect_err("a limit");
        assert!(refused.to_string().contains("8 of the 20 bytes of foreign green contexts"));
    }

    #[test]
    fn a_limit_that_ends_leaves_the_counters() {
        let (mut accounts, owner) = (Accounts::default(), partition("decode"));
        accounts.set_partition_limit("decode", Some(50));
        assert!(accounts.reserve(&owner, 8).is_ok());
        accounts.take(&owner, 8);
        accounts.give_back(&owner, 8);
        accounts.set_partition_limit("decode", None);
        assert_eq!(accounts.of("decode").map(|usage| usage.allocations), Some(1));
    }

    #[test]
    fn accounts_that_nobody_uses_do_not_pile_up() {
        let mut accounts = Accounts::default();
        let name = |number: usize| format!("p{number}");
        let used = |accounts: &mut Accounts, number| {
            let owner = partition(&name(number));
            assert!(accounts.reserve(&owner, 8).is_ok());
            accounts.take(&owner, 8);
        };
        let all = 4 * KEPT;
        accounts.set_partition_limit("limited", Some(100));
        (0..all).for_each(|number| used(&mut accounts, number));
        assert_eq!(accounts.partitions.len(), all + 1, "what is in use stays");
        // Account 0 is used again, after all others.
        for number in (1..all).chain([0]) {
            accounts.give_back(&partition(&name(number)), 8);
        }
        assert_eq!(accounts.partitions.len(), KEPT + 1);
        let kept = [0, all - 1, all - KEPT, 1].map(|number| accounts.of(&name(number)).is_some());
        assert_eq!(kept, [true, true, false, false]);
        accounts.set_partition_limit("limited", None);
        assert_eq!(accounts.of("limited"), None, "no memory was requested there");
        // Refused requests do not accumulate accounts either.
        accounts.set_limit(Some(0));
        for number in 0..all {
            assert!(accounts.reserve(&partition(&name(number)), 8).is_err());
        }
        assert_eq!(accounts.partitions.len(), KEPT);
        assert_eq!(accounts.total().refusals, all as u64);
    }
}
