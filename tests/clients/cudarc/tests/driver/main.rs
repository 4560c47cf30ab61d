//! cudarc on the simulated driver, in one program, since a program has one driver.

mod graphs;
mod partitions;
mod streams;
