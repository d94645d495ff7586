{{/* Up at once, down one by one: Triton starts slowly and leaves slowly. */}}
{{- define "tidegate.behavior" -}}
scaleUp:
  stabilizationWindowSeconds: 0
  policies: [{ type: Percent, value: 100, periodSeconds: 60 }, { type: Pods, value: 2, periodSeconds: 60 }]
scaleDown:
  stabilizationWindowSeconds: 300
  policies: [{ type: Pods, value: 1, periodSeconds: 120 }]
{{- end }}

{{/* An HPA on processor use. Takes a list: the context, the component, its autoscaling. */}}
{{- define "tidegate.hpa" -}}
{{- $root := index . 0 -}}
{{- $scaling := index . 2 -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "tidegate.fullname" $root }}-{{ index . 1 }}
  labels: {{- include "tidegate.labels" . | nindent 4 }}
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: {{ include "tidegate.fullname" $root }}-{{ index . 1 }} }
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    - type: Resource
      resource: { name: cpu, target: { type: Utilization, averageUtilization: {{ $scaling.cpuPercent }} } }
  behavior: {{- include "tidegate.behavior" . | nindent 4 }}
{{- end }}

{{/* A KEDA ScaledObject. Takes a list: the context, the component, its autoscaling, the query, the aim for one pod. */}}
{{- define "tidegate.scaledObject" -}}
{{- $root := index . 0 -}}
{{- $scaling := index . 2 -}}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ include "tidegate.fullname" $root }}-{{ index . 1 }}
  labels: {{- include "tidegate.labels" . | nindent 4 }}
spec:
  scaleTargetRef: { name: {{ include "tidegate.fullname" $root }}-{{ index . 1 }} }
  pollingInterval: 15
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  # Without Prometheus nobody is sent away.
  fallback: { failureThreshold: 4, replicas: {{ $scaling.minReplicas }}, behavior: currentReplicasIfHigher }
  advanced:
    horizontalPodAutoscalerConfig:
      behavior: {{- include "tidegate.behavior" . | nindent 8 }}
  triggers:
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ $root.Values.prometheus.url }}
        query: {{ index . 3 | quote }}
        threshold: {{ index . 4 | int64 | quote }}
        # No answer is not the same as no load.
        ignoreNullValues: "false"
{{- end }}
