package controller

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/longshore-csi/longshore/csikit/reconcile"
)

// look asks the driver about a snapshot that exists, and records the answer.
func (l *loop) look(ctx context.Context, r record) error {
	if r.isReady() && !r.behind {
		return l.writeStatus(ctx, r, map[string]any{"error": nil}) // only an error is left, and failures do not leave a snapshot ready
	}
	s, err := l.ask(ctx, r)
	if err != nil {
		return err
	}
	if s.handle != r.handle() {
		return fmt.Errorf("the driver has answered about %s %q when asked about %q, which is a defect of the driver", l.what, s.handle, r.handle())
	}
	incomplete := l.incomplete(r, s)
	if incomplete != nil {
		s = r.whole(s)
	}
	if err := l.record(ctx, r, s); err != nil || incomplete != nil {
		return cmp.Or(err, incomplete)
	}
	l.polled(r, l.memory.of(r.name, r.uid).of(doRead, r), s)
	return nil
}

// ask asks the driver about a snapshot that exists, by the call that the driver implements.
func (l *loop) ask(ctx context.Context, r record) (snapshot, error) {
	if l.readsByCreate(r) {
		request, err := l.createRequest(ctx, r)
		if err != nil {
			return snapshot{}, err
		}
		return l.call(ctx, request)
	}
	c, _ := l.class(r.class) // without it there is no secret
	ref, err := readSecret(l.names, r, c)
	if err != nil {
		return snapshot{}, err
	}
	secrets, err := l.secret(ctx, ref)
	if err != nil {
		return snapshot{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.Timeout)
	defer cancel()
	return l.read(ctx, r, secrets)
}

// polled remembers when to ask the driver again whether the snapshot is ready.
func (l *loop) polled(r record, last attempt, s snapshot) {
	last.failures, last.err, last.code = 0, "", codes.OK
	if !s.ready {
		last.step, last.deleting = doRead, r.deleting
		last.due = time.Now().Add(reconcile.Pause(l.cfg.Retry, r.name, last.polls))
		last.polls++
	}
	l.memory.put(r.name, last)
}

// record writes what the status lacks of an answer of the driver.
func (l *loop) record(ctx context.Context, r record, s snapshot) error {
	if err := l.recordPlace(ctx, r, s); err != nil {
		return err
	}
	if fields := l.learned(r, s, time.Now()); len(fields) > 0 {
		return l.writeStatus(ctx, r, fields)
	}
	return nil
}
