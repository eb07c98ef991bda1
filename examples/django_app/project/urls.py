from django.urls import path
from shop import views

urlpatterns = [
    path("orders/", views.place_order),
    path("orders/<int:number>/", views.show_order),
    path("reports/", views.ask_for_report),
    path("reports/<str:result_id>/", views.show_report),
    path("reminders/<int:number>/", views.remind),
]
