// Package proxy joins connections of clients with connections that a driver makes: a driver outside of the cluster, such as one inside a test process, serves
// the sidecars and the kubelet of a node that it can reach, and that cannot reach it. It knows no protocol, and passes bytes on.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// maxConnections bounds the connections of each side, those that wait and those that are joined. More of them wait in the kernel until one has ended.
const maxConnections = 256

// Run joins each connection that the first listener accepts with one that the second accepts, in the order in which they come, until ctx ends, which is no
// error, or a listener fails. It closes the listeners, and all connections before it returns.
func Run(ctx context.Context, clients, drivers net.Listener) error {
	group, ctx := errgroup.WithContext(ctx)
	p := &proxy{group: group, waiting: make(chan *end)}
	group.Go(func() error {
		<-ctx.Done()
		return errors.Join(clients.Close(), drivers.Close())
	})
	group.Go(func() error { return p.accept(ctx, clients, p.serve) })
	group.Go(func() error { return p.accept(ctx, drivers, p.offer) })
	return group.Wait()
}

// proxy is one Run. Connections of the driver come to clients through the channel, with the duty to close them.
type proxy struct {
	group   *errgroup.Group
	waiting chan *end
}

// accept has each connection of a listener handled in a goroutine of its own.
func (p *proxy) accept(ctx context.Context, l net.Listener, handle func(context.Context, *end)) error {
	slots := make(chan struct{}, maxConnections)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		accepted, err := l.Accept()
		if err != nil {
			return unlessDone(ctx, fmt.Errorf("accept a connection at %q: %w", l.Addr(), err))
		}
		e, err := newEnd(accepted, slots)
		if err != nil {
			return err
		}
		p.group.Go(func() error {
			handle(ctx, e)
			return nil
		})
	}
}

// unlessDone returns an error, but not that of a listener which was closed because ctx has ended.
func unlessDone(ctx context.Context, err error) error {
	select {
	case <-ctx.Done():
		return nil
	default:
		return err
	}
}

// offer keeps a connection of the driver until a client takes it, or its peer has ended it.
func (p *proxy) offer(ctx context.Context, driver *end) {
	select {
	case p.waiting <- driver:
		return
	case <-driver.watched:
	case <-ctx.Done():
	}
	driver.close()
}

// serve joins a client with the first driver that is still connected. A client that has gone takes none.
func (p *proxy) serve(ctx context.Context, client *end) {
	defer client.close()
	for {
		select {
		case driver := <-p.waiting:
			if client.has(unix.POLLRDHUP) {
				p.group.Go(func() error {
					p.offer(ctx, driver)
					return nil
				})
				return
			}
			if driver.claim() {
				client.claim()
				klog.FromContext(ctx).V(4).Info("Joined a client with a driver")
				join(ctx, client, driver)
				driver.close()
				return
			}
			driver.close()
		case <-client.watched:
			return
		case <-ctx.Done():
			return
		}
	}
}

// conn is the common part of TCP and unix connections.
type conn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// end is one of two connections that are to be joined.
type end struct {
	conn conn
	raw  syscall.RawConn
	// watched is closed when the peer has ended the connection or its direction of it, or when claim or close ends the watch.
	watched chan struct{}
	slots   <-chan struct{}
}

// newEnd watches a connection without reading from it: bytes that arrive early stay in the kernel, which bounds them.
func newEnd(accepted net.Conn, slots <-chan struct{}) (*end, error) {
	c, ok := accepted.(conn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("join connections: %T cannot be ended in one direction", accepted), accepted.Close())
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("watch a connection: %w", err), c.Close())
	}
	e := &end{conn: c, raw: raw, watched: make(chan struct{}), slots: slots}
	go func() {
		defer close(e.watched)
		_ = raw.Read(func(fd uintptr) bool { return pending(fd, unix.POLLRDHUP) }) // Any error ends the watch, too.
	}()
	return e, nil
}

// pending reports whether one of the events has happened to a socket. Errors of the socket and its end in both directions always count.
func pending(fd uintptr, events int16) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: events}} //nolint:gosec // descriptors are small numbers
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

// has reports whether one of the events, or the end of the connection, has happened.
func (e *end) has(events int16) (happened bool) {
	err := e.raw.Control(func(fd uintptr) { happened = pending(fd, events) })
	return happened || err != nil
}

// claim ends the watch, so that the connection can be read, and reports whether the peer is still connected.
func (e *end) claim() bool {
	_ = e.conn.SetReadDeadline(time.Unix(1, 0)) // This and the next fail only for a closed connection, which is then no longer connected.
	<-e.watched
	_ = e.conn.SetReadDeadline(time.Time{})
	return !e.has(unix.POLLRDHUP)
}

// close ends the connection and its watch, and frees its slot. The owner calls it, once.
func (e *end) close() {
	_ = e.conn.Close() // join may have closed it.
	<-e.watched
	<-e.slots
}

// join passes bytes on, both ways, until both directions have ended, one has failed, a peer has closed its connection, or ctx ends.
func join(ctx context.Context, a, b *end) {
	ctx, stop := context.WithCancel(ctx)
	var directions, closer sync.WaitGroup
	directions.Go(func() { pass(a, b, stop) })
	directions.Go(func() { pass(b, a, stop) })
	closer.Go(func() {
		<-ctx.Done()
		_ = errors.Join(a.conn.Close(), b.conn.Close()) // They are closed even after an error.
	})
	directions.Wait()
	stop()
	closer.Wait()
}

// pass copies one direction, and passes its end on. The other direction may go on, unless the peer has closed the connection.
func pass(from, to *end, stop func()) {
	_, err := io.Copy(to.conn, from.conn)
	if err != nil || to.conn.CloseWrite() != nil || from.has(0) {
		stop()
	}
}
