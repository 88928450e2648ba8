//! libpmem2's functions, as its header declares them: those that the `pmem2` device calls, and no more.
//!
//! Written by hand from `libpmem2.h` 1.12, so that no build needs a C compiler. The library promises that these keep
//! their form (symbol version `LIBPMEM2_1.0`). Functions that return an `int` return 0, or a negative number: that of
//! `errno`, or one from [`E_FIRST`] down.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The first of the library's own error numbers; those of `errno` are above.
pub(super) const E_FIRST: c_int = -100_000;
/// The kind of file is none that the library maps.
pub(super) const E_INVALID_FILE_TYPE: c_int = -100_005;
/// The file can only be mapped with a coarser granularity than was asked for.
pub(super) const E_GRANULARITY_NOT_SUPPORTED: c_int = -100_009;

/// `enum pmem2_granularity`, whose values are 0 to 2: what a store needs, to be durable.
pub(super) type Granularity = c_uint;
/// Nothing: the caches are kept when the power goes.
pub(super) const GRANULARITY_BYTE: Granularity = 0;
/// The line written back.
pub(super) const GRANULARITY_CACHE_LINE: Granularity = 1;

/// Do not wait for what was written: that is for a later drain.
pub(super) const F_MEM_NODRAIN: c_uint = 1 << 0;
/// Past the cache.
pub(super) const F_MEM_NONTEMPORAL: c_uint = 1 << 1;

/// `struct pmem2_config`, known to the library alone.
#[repr(C)]
pub(super) struct Config {
    _opaque: [u8; 0],
}

/// `struct pmem2_source`, known to the library alone.
#[repr(C)]
pub(super) struct Source {
    _opaque: [u8; 0],
}

/// `struct pmem2_map`, known to the library alone.
#[repr(C)]
pub(super) struct Map {
    _opaque: [u8; 0],
}

/// Writes back the lines of a range.
pub(super) type FlushFn = unsafe extern "C" fn(at: *const c_void, len: usize);
/// Waits for what was written back or streamed.
pub(super) type DrainFn = unsafe extern "C" fn();
/// Copies, and writes back what it copied, as the flags say.
pub(super) type MemcpyFn =
    unsafe extern "C" fn(to: *mut c_void, from: *const c_void, len: usize, flags: c_uint) -> *mut c_void;

unsafe extern "C" {
    pub(super) fn pmem2_config_new(config: *mut *mut Config) -> c_int;
    pub(super) fn pmem2_config_delete(config: *mut *mut Config) -> c_int;
    pub(super) fn pmem2_config_set_required_store_granularity(config: *mut Config, granularity: Granularity) -> c_int;

    pub(super) fn pmem2_source_from_fd(source: *mut *mut Source, fd: c_int) -> c_int;
    pub(super) fn pmem2_source_delete(source: *mut *mut Source) -> c_int;
    pub(super) fn pmem2_source_size(source: *const Source, bytes: *mut usize) -> c_int;

    pub(super) fn pmem2_map_new(map: *mut *mut Map, config: *const Config, source: *const Source) -> c_int;
    pub(super) fn pmem2_map_delete(map: *mut *mut Map) -> c_int;
    pub(super) fn pmem2_map_get_address(map: *mut Map) -> *mut c_void;
    pub(super) fn pmem2_map_get_size(map: *mut Map) -> usize;
    pub(super) fn pmem2_map_get_store_granularity(map: *mut Map) -> Granularity;

    pub(super) fn pmem2_get_flush_fn(map: *mut Map) -> Option<FlushFn>;
    pub(super) fn pmem2_get_drain_fn(map: *mut Map) -> Option<DrainFn>;
    pub(super) fn pmem2_get_memcpy_fn(map: *mut Map) -> Option<MemcpyFn>;

    /// What the last failed call of this thread says, until its next call.
    pub(super) fn pmem2_errormsg() -> *const c_char;
}
