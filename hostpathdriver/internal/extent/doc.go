// Package extent finds out which ranges of snapshots hold data, and in which
// ones two of them differ, for backends whose snapshots are sparse files. It
// asks the file system for holes, and for blocks that both files share, and
// does not read them.
//
// The files must not change while they are looked at; they may be deleted. Do
// not use it over a storage system that tracks changes itself: asking that is
// cheaper than comparing.
package extent
