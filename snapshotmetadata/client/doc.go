// Package client is for backup programs: it iterates over the blocks of a snapshot that hold data, or that have changed since an earlier
// snapshot, and continues where it was interrupted when the connection is lost, the service restarts or a stream reaches its longest duration.
//
//	c, err := client.New(client.Config{Address: sms.Spec.Address, CACert: sms.Spec.CACert, Token: token})
//	...
//	for blocks, err := range c.Allocated(ctx, client.Snapshot{Namespace: "shop", Name: "monday"}) {
//		if err != nil {
//			return err
//		}
//		for _, r := range blocks.Ranges {
//			// copy r.Size bytes at r.Offset of a volume that was restored from the snapshot
//		}
//	}
//
// Address, CA and audience of the token are in the SnapshotMetadataService object with the name of the driver. It works with any
// implementation of the service, and links no Kubernetes client.
package client
