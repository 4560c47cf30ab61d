//! The books: who uses how many bytes, and who may.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::AllocatorError;

/// What is in use, at most was, and may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Usage {
    /// The bytes in use: asked for and not given back to the driver yet.
    pub current_bytes: u64,
    /// The most bytes that were in use since the peak was last reset.
    pub peak_bytes: u64,
    /// The blocks in use.
    pub current_blocks: u64,
    /// The most blocks that were in use since the peak was last reset.
    pub peak_blocks: u64,
    /// How many blocks were allocated so far.
    pub allocations: u64,
    /// How many requests a limit refused.
    pub refusals: u64,
    /// How many requests failed for another reason, the device's memory for example.
    pub failures: u64,
    /// The most bytes that may be in use; `None` where there is no limit.
    pub limit_bytes: Option<u64>,
}

/// A usage, and the bytes of blocks that are being allocated.
#[derive(Clone, Copy, Default)]
struct Account {
    usage: Usage,
    reserved: u64,
}

impl Account {
    fn used(&self) -> u64 {
        self.usage.current_bytes.saturating_add(self.reserved)
    }

    fn check(&self, partition: Option<&str>, bytes: u64) -> Result<(), AllocatorError> {
        let (used, limit) = (self.used(), self.usage.limit_bytes.unwrap_or(u64::MAX));
        if bytes <= limit.saturating_sub(used) {
            return Ok(());
        }
        Err(AllocatorError::Limit { partition: partition.map(str::to_owned), bytes, used, limit })
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

/// The accounts of an allocator: one in total, and one a partition's name.
#[derive(Default)]
pub(super) struct Accounts {
    total: Account,
    partitions: BTreeMap<Arc<str>, Account>,
}

impl Accounts {
    fn partition(&mut self, name: &Arc<str>) -> &mut Account {
        self.partitions.entry(Arc::clone(name)).or_default()
    }

    /// Sets bytes aside where both limits leave room for them; counts a refusal otherwise.
    pub(super) fn reserve(&mut self, name: &Arc<str>, bytes: u64) -> Result<(), AllocatorError> {
        let fits = self.total.check(None, bytes);
        let partition = self.partition(name);
        let fits = fits.and_then(|()| partition.check(Some(name), bytes));
        match &fits {
            Ok(()) => partition.reserved += bytes,
            Err(_) => partition.usage.refusals += 1,
        }
        match &fits {
            Ok(()) => self.total.reserved += bytes,
            Err(_) => self.total.usage.refusals += 1,
        }
        fits
    }

    /// Bytes that were set aside are in use.
    pub(super) fn take(&mut self, name: &Arc<str>, bytes: u64) {
        for account in self.both(name) {
            account.reserved -= bytes;
            account.take(bytes);
        }
    }

    /// Bytes that were set aside are not needed: the driver refused.
    pub(super) fn cancel(&mut self, name: &Arc<str>, bytes: u64) {
        for account in self.both(name) {
            account.reserved -= bytes;
            account.usage.failures += 1;
        }
    }

    /// Bytes that were in use are the driver's again.
    pub(super) fn give_back(&mut self, name: &Arc<str>, bytes: u64) {
        for account in self.both(name) {
            account.give_back(bytes);
        }
    }

    fn both(&mut self, name: &Arc<str>) -> [&mut Account; 2] {
        let partition = self.partitions.entry(Arc::clone(name)).or_default();
        [&mut self.total, partition]
    }

    pub(super) fn set_limit(&mut self, limit: Option<u64>) {
        self.total.usage.limit_bytes = limit;
    }

    pub(super) fn set_partition_limit(&mut self, name: &str, limit: Option<u64>) {
        self.partition(&Arc::from(name)).usage.limit_bytes = limit;
    }

    pub(super) fn reset_peak(&mut self) {
        self.total.reset_peak();
        self.partitions.values_mut().for_each(Account::reset_peak);
    }

    pub(super) fn total(&self) -> Usage {
        self.total.usage
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

    #[test]
    fn what_is_being_allocated_counts_against_limits() {
        let mut accounts = Accounts::default();
        let (decode, prefill) = (Arc::from("decode"), Arc::from("prefill"));
        accounts.set_limit(Some(100));
        accounts.set_partition_limit("decode", Some(50));
        assert!(accounts.reserve(&decode, 40).is_ok());
        let refused = accounts.reserve(&decode, 11);
        assert!(matches!(
            refused,
            Err(AllocatorError::Limit { partition: Some(_), used: 40, limit: 50, .. })
        ));
        assert!(accounts.reserve(&prefill, 60).is_ok());
        let refused = accounts.reserve(&prefill, 1);
        assert!(matches!(refused, Err(AllocatorError::Limit { partition: None, used: 100, .. })));
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
        let name = Arc::from("primary");
        assert!(accounts.reserve(&name, u64::MAX).is_ok());
        assert!(accounts.reserve(&name, 1).is_err());
        accounts.cancel(&name, u64::MAX);
        assert!(accounts.reserve(&name, 1).is_ok());
    }
}
