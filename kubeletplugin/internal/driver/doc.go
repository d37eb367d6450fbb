// Package driver keeps the CSI drivers of this node: one connection per
// registered driver, its node capabilities read once per connection, and a
// wake-up for volume work that waits for a driver.
//
// A driver that is not registered yet, or not any more, can be reached for
// unmounts through Registry.Last. The package makes calls and does not judge them: whether an
// error may be retried is decided by package outcome, and what a volume does
// about it by package volume.
package driver
