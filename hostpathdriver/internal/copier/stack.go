package copier

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// level is a directory between the root of a tree and where the copy is.
type level struct {
	name           string
	source, target *os.File // nil while too many are open, or gone
	stat           unix.Stat_t
	names          []string // that come next
	last           string   // name that was taken last
	listed         bool     // nothing comes behind names
	skip           []string // way from here to the last entry that is copied
	passed         bool     // all in here is copied
}

// next takes the next name. Names that come into being behind it are found,
// those before it are not.
func (l *level) next(limit int) (string, bool, error) {
	if l.source == nil {
		return "", false, nil // it vanished
	}
	if len(l.names) == 0 && !l.listed {
		names, err := namesAfter(l.source, l.last, limit)
		if err != nil {
			return "", false, err
		}
		l.names, l.listed = names, len(names) < limit
	}
	if len(l.names) == 0 {
		return "", false, nil
	}
	l.last, l.names = l.names[0], l.names[1:]
	return l.last, true, nil
}

// standing is where an entry is, seen from the last checkpoint.
type standing int

const (
	ahead   standing = iota // not copied
	passed                  // copied with all that is below it
	within                  // copied up to some entry below it
	reached                 // the entry of the checkpoint itself
)

func (l *level) standing(name string) standing {
	switch {
	case l.passed:
		return passed
	case len(l.skip) == 0 || name > l.skip[0]:
		return ahead
	case name < l.skip[0]:
		return passed
	case len(l.skip) > 1:
		return within
	}
	return reached
}

func (l *level) close() {
	for _, file := range []*os.File{l.source, l.target} {
		if file != nil {
			file.Close()
		}
	}
	l.source, l.target = nil, nil
}

// stack is the way from the root of the tree to where the copy is. Only its
// upper part is open, so that no tree is too deep.
type stack struct {
	source, target *os.File
	levels         []*level
}

func (s *stack) top() *level {
	return s.levels[len(s.levels)-1]
}

func (s *stack) push(l *level, limit int) {
	s.levels = append(s.levels, l)
	if below := len(s.levels) - 1 - limit; below >= 0 {
		s.levels[below].close()
	}
}

func (s *stack) pop() *level {
	l := s.top()
	s.levels = s.levels[:len(s.levels)-1]
	return l
}

func (s *stack) close() {
	for _, l := range s.levels {
		l.close()
	}
}

// path is where a name of the topmost directory is, seen from the root.
func (s *stack) path(name string) string {
	var b strings.Builder
	for _, l := range s.levels[1:] {
		b.WriteString(l.name)
		b.WriteByte('/')
	}
	return b.String() + name
}

// dir is the path of a level.
func (s *stack) dir(i int) string {
	names := make([]string, 0, i)
	for _, l := range s.levels[1 : i+1] {
		names = append(names, l.name)
	}
	return strings.Join(names, "/")
}

// reopen opens the upper part again when the copy comes back to it: half of
// what may be open, so that the way from the root is not gone for each level.
// The source may be gone by now, or be another directory.
func (s *stack) reopen(limit int) error {
	if !s.top().closed() {
		return nil
	}
	for i := max(0, len(s.levels)-(limit+1)/2); i < len(s.levels); i++ {
		if err := s.reopenLevel(i); err != nil {
			return err
		}
	}
	return nil
}

func (l *level) closed() bool {
	return l.source == nil && l.target == nil
}

func (s *stack) reopenLevel(i int) error {
	l := s.levels[i]
	if !l.closed() {
		return nil
	}
	source, err := s.below(i, s.source, func(l *level) *os.File { return l.source })
	if err == nil {
		l.source, err = reopen(source, unix.O_RDONLY|unix.O_DIRECTORY)
		source.Close()
	}
	if err != nil && !isAny(err, unix.ENOENT, unix.ENOTDIR, unix.ELOOP) {
		return err
	}
	if l.passed {
		return nil
	}
	l.target, err = s.below(i, s.target, func(l *level) *os.File { return l.target })
	return err
}

// below opens a level from the one above it, or from the root if that is
// closed.
func (s *stack) below(i int, root *os.File, of func(*level) *os.File) (*os.File, error) {
	if i > 0 {
		if above := of(s.levels[i-1]); above != nil {
			return openAt(above, s.levels[i].name, unix.O_PATH|unix.O_DIRECTORY)
		}
	}
	return descend(root, s.dir(i))
}
