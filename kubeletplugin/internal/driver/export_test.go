package driver

// count returns how many hold or use the connection.
func (l *link) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.users
}

// isClosed reports whether the connection has ended.
func (l *link) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}
