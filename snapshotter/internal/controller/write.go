package controller

import (
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/csikit/kube"
)

// write applies a patch to a content.
func (l *loop) write(ctx context.Context, r record, patch map[string]any) error {
	_, err := l.send(ctx, r, patch)
	return err
}

// send applies a patch to a content and returns the content with it.
func (l *loop) send(ctx context.Context, r record, patch map[string]any) (record, error) {
	data, err := json.Marshal(patch)
	if err != nil {
		return record{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.KubeTimeout)
	defer cancel()
	patched, err := l.patch(ctx, r.name, data)
	if err != nil {
		return record{}, kube.PatchError(l.kind, r.name, err)
	}
	return patched, nil
}

// writeStatus applies a patch to the status of a content.
func (l *loop) writeStatus(ctx context.Context, r record, fields map[string]any) error {
	data, err := statusPatch(r, fields)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, l.cfg.KubeTimeout)
	defer cancel()
	if _, err := l.patch(ctx, r.name, data, "status"); err != nil {
		return kube.PatchError(l.kind, r.name, err)
	}
	return nil
}

// secret reads a secret, nil without a reference.
func (l *loop) secret(ctx context.Context, ref *corev1.SecretReference) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.cfg.KubeTimeout)
	defer cancel()
	return l.cfg.Secrets.Data(ctx, ref)
}
