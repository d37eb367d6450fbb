package backend

import "sync"

// slots counts the attachments of each node.
type slots struct {
	mu    sync.Mutex
	taken map[string]int
}

// take counts one more attachment of a node, up to a limit; zero is no limit.
func (s *slots) take(node string, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if limit > 0 && s.taken[node] >= limit {
		return false
	}
	if s.taken == nil {
		s.taken = map[string]int{}
	}
	s.taken[node]++
	return true
}

// release counts one attachment less for each node.
func (s *slots) release(nodes ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, node := range nodes {
		if s.taken[node]--; s.taken[node] <= 0 {
			delete(s.taken, node)
		}
	}
}

// replace makes the numbers those that were read from disk.
func (s *slots) replace(taken map[string]int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = taken
}
