package copier

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// level is a directory between the root of a tree and the present entry.
type level struct {
	name           string
	source, target *os.File // nil while too many are open, or if it vanished
	stat           unix.Stat_t
	names          []string // that come next
	last           string   // name that was taken last
	listed         bool     // no name comes after names
}

// next takes the next name. Names that are made meanwhile are found if they sort after it.
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

func (l *level) closed() bool {
	return l.source == nil && l.target == nil
}

func (l *level) close() {
	for _, file := range []*os.File{l.source, l.target} {
		if file != nil {
			file.Close()
		}
	}
	l.source, l.target = nil, nil
}

// stack is the way from the root of the tree to the present entry. Only its upper part is open, so that no tree is too deep.
type stack struct {
	source, target *os.File // roots; without a target the tree is only read
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

// path is that of a name of the topmost directory, below the root.
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

// reopen opens the upper part again when the walk comes back to it: half of what may be open, so that the way from the root is not walked for each
// level. The source may be gone by now, or be another directory.
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
	if s.target == nil {
		return nil
	}
	l.target, err = s.below(i, s.target, func(l *level) *os.File { return l.target })
	return err
}

// below opens a level from the one above it, or from the root if that is closed.
func (s *stack) below(i int, root *os.File, of func(*level) *os.File) (*os.File, error) {
	if i > 0 {
		if above := of(s.levels[i-1]); above != nil {
			return openAt(above, s.levels[i].name, unix.O_PATH|unix.O_DIRECTORY)
		}
	}
	return descend(root, s.dir(i))
}
