//! Faults that users of such software reported in public, as inputs. A test's name begins with the case's number;
//! `tests/cases.md` says what each case is and where those stand that the other suites prove.

use super::B;

mod arguments;
mod lifetimes;
mod numbers;
mod order;
mod sizes;
