package service

import (
	"errors"
	"fmt"
	"maps"
	"sync"
)

// errTooMany is the error for a stream beyond the limits.
var errTooMany = errors.New("too many streams at a time")

// limit counts the streams at a time, in total and by user, so that one user's cannot keep out all others'. Only users who may have a stream
// count.
type limit struct {
	total, perUser int

	mu      sync.Mutex
	running int
	byUser  map[string]int
}

// enter counts a stream of a user. leave ends that.
func (l *limit) enter(user string) (leave func(), err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.byUser[user] >= l.perUser:
		return nil, fmt.Errorf("%w: user %q has %d, as --max-streams-per-user allows; try again later", errTooMany, user, l.byUser[user])
	case l.running >= l.total:
		return nil, fmt.Errorf("%w: the service has %d, as --max-streams allows; try again later", errTooMany, l.running)
	}
	l.running++
	l.byUser[user]++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.running--
		if l.byUser[user]--; l.byUser[user] == 0 {
			delete(l.byUser, user)
		}
	}, nil
}

func (l *limit) users() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.byUser)
}
